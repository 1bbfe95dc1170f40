"""vLLM's allocator for memory that sleeps, on tags."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch

from allotment import _logs as logs
from allotment._allocators.caching.tags import pool_of_tag_named
from allotment._allocators.caching.tags import tag as Tag
from allotment._allocators.current import all_holders
from allotment._core.edge.words import BlockState, word_of
from allotment.errors import AllotmentError, OutOfMemoryError
from allotment.torch._install import installed_mode
from allotment.torch._pool import MemPool

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator

_PREFIX = "vllm/"
_GRAPHS = "cudagraph"
DEFERRABLE = ("weights", "kv_cache")
"""Tags that a wake by tags may leave asleep; it wakes every other tag too."""


@dataclass(frozen=True, slots=True)
class Allocation:
    """A block in use, with the names of vLLM's `AllocationData`."""

    handle: tuple[int, int, int, int]
    tag: str
    is_asleep: bool
    cpu_backup_tensor: memoryview | None


class CuMemAllocator:
    """CuMemAllocator()\n--\n
    vLLM's allocator for memory that sleeps: one for the process, from `get_instance`.

    A sleep that fails has changed nothing, unless the memory was to be discarded. A wake that fails, with
    `torch.OutOfMemoryError` if memory is short, leaves what did not fit asleep as it was; it can be tried again.
    """

    instance: CuMemAllocator | None = None
    default_tag = "default"

    def __init__(self) -> None:
        self.current_tag = self.default_tag
        self._graph_pool: Any = None

    @classmethod
    def get_instance(cls) -> CuMemAllocator:
        """Return the one of this process."""
        if CuMemAllocator.instance is None:
            CuMemAllocator.instance = cls()
        return CuMemAllocator.instance

    # --- requests ---

    @contextmanager
    def use_memory_pool(self, tag: str | None = None) -> Iterator[None]:
        """Put what this thread allocates inside into a tag; at the end, release the part that is only cached."""
        with self._inside(tag or self.default_tag) as name:
            try:
                yield
            finally:
                for allocator in _allocators_with(name):
                    if name not in allocator.paused():
                        allocator.empty_cache(pool_of_tag_named(name))

    @contextmanager
    def cudagraph_pool(self) -> Iterator[tuple[int, int]]:
        """Return the id of a pool for graph captures; its memory is in the tag "cudagraph"."""
        with self._inside(_GRAPHS):
            if self._graph_pool is None:
                self._graph_pool = MemPool() if installed_mode() == "hooks" else torch.cuda.MemPool()
            yield tuple(self._graph_pool.id)

    @contextmanager
    def _inside(self, tag: str) -> Iterator[str]:
        before, self.current_tag = self.current_tag, tag
        try:
            with Tag(_PREFIX + tag):
                yield _PREFIX + tag
        finally:
            self.current_tag = before

    # --- sleep ---

    def sleep(self, offload_tags: tuple[str, ...] | str | None = None) -> None:
        """Put all tags to sleep: the named ones with their contents on the host, the others without."""
        if offload_tags is None:
            offload_tags = (self.default_tag,)
        elif isinstance(offload_tags, str):
            offload_tags = (offload_tags,)
        # First those whose contents are kept: if that fails, nothing is lost yet.
        kept = [found for found in _tags() if found[1].removeprefix(_PREFIX) in offload_tags]
        paused: list[tuple[Allocator, str]] = []
        try:
            for allocator, name in kept:
                if self._pause(allocator, name, "host"):
                    paused.append((allocator, name))
        except BaseException:
            for allocator, name in paused:
                allocator.resume(name)
            raise
        self._discard([found for found in _tags() if found not in kept])
        _release_cache()

    def discard(self, tags: tuple[str, ...] | str) -> None:
        """Put some tags to sleep without their contents."""
        names = (tags,) if isinstance(tags, str) else tags
        self._discard([found for found in _tags() if found[1].removeprefix(_PREFIX) in names])

    def _discard(self, found: list[tuple[Allocator, str]]) -> None:
        for allocator, name in found:
            self._pause(allocator, name, "nothing")

    def _pause(self, allocator: Allocator, name: str, keep: str) -> bool:
        """Whether it was awake."""
        if name not in allocator.paused():
            allocator.pause(name, keep=keep)
            return True
        if any((block.cpu_backup_tensor is not None) != (keep == "host") for block in _blocks(allocator, name)):
            logs.logger.warning("tag %r of vLLM is asleep already, and its contents stay as they are kept", name)
        return False

    def wake_up(self, tags: list[str] | None = None) -> None:
        """Wake all tags; with `tags`, of "weights" and "kv_cache" only those named, and every other tag."""
        _release_cache()
        for allocator, name in _tags():
            tag = name.removeprefix(_PREFIX)
            if name in allocator.paused() and (tags is None or tag in tags or tag not in DEFERRABLE):
                try:
                    allocator.resume(name)
                except OutOfMemoryError as error:
                    raise torch.OutOfMemoryError(f"tag {tag!r} of vLLM is still asleep: {error}") from error

    # --- contents ---

    @property
    def pointer_to_data(self) -> dict[int, Allocation]:
        """Return the blocks in use, awake or asleep, by address."""
        found = [block for allocator, name in _tags() for block in _blocks(allocator, name)]
        return {block.handle[2]: block for block in found}

    def get_current_usage(self) -> int:
        """Return the bytes in use, awake or asleep."""
        return sum(block.handle[1] for block in self.pointer_to_data.values())

    def release_pools(self) -> None:
        """Release cached memory, and the pool of graphs once no graph uses it. May be called again."""
        self._graph_pool = None
        _release_cache()

    def close(self) -> None:
        """`release_pools`."""
        self.release_pools()


def _tags() -> list[tuple[Allocator, str]]:
    """Return every tag of vLLM on every allocator that has memory in it, awake or asleep."""
    return [
        (holder, name)
        for holder in all_holders()
        if hasattr(holder, "sleep") and not holder.closed
        for name, figures in holder.sleep.tags().items()
        if name.startswith(_PREFIX) and any(figures.values())
    ]


def _allocators_with(name: str) -> list[Allocator]:
    return [allocator for allocator, found in _tags() if found == name]


def _blocks(allocator: Allocator, name: str) -> list[Allocation]:
    pools = set(allocator.sleep.pools_of(name))
    asleep = name in allocator.paused()
    return [
        Allocation(
            (segment["device"], block["size"], block["address"], 0),
            name.removeprefix(_PREFIX),
            asleep,
            allocator.sleep.contents_of(block["address"], block["size"]) if asleep else None,
        )
        for segment in allocator.history.segments()
        if segment["segment_pool_id"] in pools
        for block in segment["blocks"]
        if block["state"] == word_of(BlockState.ACTIVE_ALLOCATED)
    ]


def _release_cache() -> None:
    """Release the caches of PyTorch and of every allocator."""
    gc.collect()
    try:
        torch.cuda.empty_cache()
    except AllotmentError as error:
        logs.logger.warning("the cache could not be emptied: %s", error)
