"""Finds leaks: which memory is alive, the line that allocated it, and whether before or after a mark."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from allotment.errors import AllotmentError, RequestError


@dataclass(frozen=True, slots=True)
class Alive:
    """Blocks in use that one place allocated: `where` is "file:line function", `stack` that place and its callers.

    `blocks` is their number, `bytes` the sum of their requested sizes.
    """

    where: str
    blocks: int
    bytes: int
    stack: tuple[str, ...] = ()


class Mark:
    """A moment in an allocator's life, made by `History.mark`. It knows which earlier blocks are still in use.

    For that it observes every free until it is closed or dropped.
    """

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self._before: set[int] = set()
        self._tracker = _forgetting(self._before)
        allocator.history.attach_trace_tracker(self._tracker)
        self._before.update(addresses_in_use(allocator.history.segments()))

    def is_before(self, address: int) -> bool:
        """Whether the block in use at an address existed at this moment."""
        return address in self._before

    def is_of(self, allocator: Any) -> bool:
        """Whether the mark belongs to this allocator."""
        return self._allocator is allocator

    def close(self) -> None:
        """Stop observing frees. A second call does nothing."""
        with suppress(AllotmentError):
            self._allocator.history.detach_trace_tracker(self._tracker)

    def __enter__(self) -> Mark:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def __del__(self) -> None:
        if hasattr(self, "_tracker"):
            self.close()


def _forgetting(addresses: set[int]) -> Callable[..., None]:
    def forget(action: str, address: int, size: int, stream: int, pool: tuple[int, int]) -> None:
        if action == "free_requested":
            addresses.discard(address)

    return forget


def addresses_in_use(segments: list[dict[str, Any]]) -> set[int]:
    """Return the addresses of the blocks in use."""
    return {
        block["address"] for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
    }


def alive(segments: list[dict[str, Any]], chosen: Callable[[int], bool]) -> list[Alive]:
    """Return the blocks in use whose address is chosen, by the place that allocated them, most bytes first."""
    blocks: Counter[tuple[str, ...]] = Counter()
    sizes: Counter[tuple[str, ...]] = Counter()
    for segment in segments:
        for block in segment["blocks"]:
            if block["state"] == "active_allocated" and chosen(block["address"]):
                stack = tuple(f"{f['filename']}:{f['line']} {f['name']}" for f in block["frames"])
                blocks[stack] += 1
                sizes[stack] += block["requested_size"]
    return [Alive(stack[0] if stack else "", blocks[stack], size, stack) for stack, size in sizes.most_common()]


def check_mark(mark: Any, allocator: Any) -> None:
    """Raise unless a mark belongs to this allocator."""
    if not isinstance(mark, Mark) or not mark.is_of(allocator):
        raise RequestError(f"{mark!r} is not a mark of {allocator!r}; make one with its mark()")
