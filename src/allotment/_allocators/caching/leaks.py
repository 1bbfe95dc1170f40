"""Finding leaks: what is alive, by the line that allocated it, and on which side of a mark in time."""

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
    """Blocks in use that came from one place: `where` is "file:line function", `stack` that and its callers.

    `blocks` is how many, `bytes` what was asked for.
    """

    where: str
    blocks: int
    bytes: int
    stack: tuple[str, ...] = ()


class Mark:
    """A moment in an allocator's life, made by `History.mark`: it knows which blocks of before are still in use.

    For that it hears of every free until it is closed or forgotten.
    """

    def __init__(self, allocator: Any) -> None:
        self._allocator = allocator
        self._before: set[int] = set()
        self._tracker = _forgetting(self._before)
        allocator.history.attach_trace_tracker(self._tracker)
        self._before.update(addresses_in_use(allocator.history.segments()))

    def is_before(self, address: int) -> bool:
        """Whether the block in use at an address was there at this moment."""
        return address in self._before

    def is_of(self, allocator: Any) -> bool:
        """Whether it is a moment of this allocator's."""
        return self._allocator is allocator

    def close(self) -> None:
        """Hear of frees no more; a second time, nothing happens."""
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
    """Where the blocks in use begin."""
    return {
        block["address"] for segment in segments for block in segment["blocks"] if block["state"] == "active_allocated"
    }


def alive(segments: list[dict[str, Any]], chosen: Callable[[int], bool]) -> list[Alive]:
    """The blocks in use whose address is chosen, by the place that they came from, the most bytes first."""
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
    """Raises unless a mark is of this allocator."""
    if not isinstance(mark, Mark) or not mark.is_of(allocator):
        raise RequestError(f"{mark!r} is not a mark of {allocator!r}; make one with its mark()")
