# Made from pooling_allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import Pool, PoolId, PoolState
from allotment._allocators.caching.recording_allocator import RecordingAllocator

class PoolingAllocator(RecordingAllocator):
    """An engine with private pools; users hold an `Allocator`."""

    def pool(
        self, *, use_on_oom: bool = False, no_split: bool = False, allocator: Any = None, placement: str | None = None
    ) -> Pool:
        """A private pool: `with pool:` serves this thread's requests from its memory and from nowhere else.

        `use_on_oom` lends its free memory to others when memory is out; `no_split` hands out whole segments;
        `allocator` is where its segments come from: an object with allocate(size, stream) and
        free(address, size, stream), or a PluggableAllocator; `placement` is the name of another way to divide its
        memory than the allocator's. Raises SettingsError for a placement that is not there.
        """
    def create_or_incref_pool(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None:
        """Make the pool with this id, or add a use to one that is there; `release_pool` takes the use back.

        Ids are (0, n) or (n, 0) with n >= 1. `allocator` and `placement` as for `pool`, and only for a pool that is
        not there yet. Raises PoolError, TypeError for an `allocator` that lacks one of its methods.
        """
    def release_pool(self, pool: PoolId) -> None:
        """Take back one use of a pool. After the last, its memory goes as it becomes free and the cache is emptied.

        Raises PoolError if there is no such pool or it is not in use.
        """
    def close_pool(self, pool: PoolId) -> None:
        """Release a pool, which lends no more, and give back what it has cached.

        Called from inside the allocator, by a collection or a callback, it is done when the allocator is entered next.
        Raises PoolError, DeviceError.
        """
    def _give_up_use(self, pool: PoolId) -> None:
        """`close_pool` for a user that has not made the pool: others may go on lending it."""
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Give unused cached memory back to the device: that of all pools, or of one.

        Blocks in use stay, and all memory of a private pool that is in use (`pool_use_count`), as in PyTorch:
        `Pool.close` gives that back. Waits for events of blocks that other streams used, and calls the device for each
        segment.
        Raises PoolError for a pool that never was, DeviceError. Safe to call from several threads.
        """
    def trim_to(self, size: int | str) -> int:
        """Give cached memory back until no more than `size` bytes are reserved; gives how many bytes went.

        `size` is a number of bytes or a text such as "2GiB". What is in use stays, so more may be left. Waits and
        raises as `empty_cache` does. Safe to call from several threads.
        """
    def pool_use_count(self, pool: PoolId) -> int:
        """How many uses the pool has: by `Pool` objects, by `with` blocks, by graphs. Raises PoolError."""
    def pool_reserved_bytes(self, pool: PoolId) -> int:
        """Physical memory that the pool holds now; (0, 0) is the default pool. Raises PoolError."""
    def set_use_on_oom(self, pool: PoolId, on: bool) -> None:
        """Let the pool lend its free memory to others when memory is out, or not. Raises PoolError."""
    def set_no_split(self, pool: PoolId) -> None:
        """Let the pool hand out whole segments from now on. Raises PoolError."""
    def _lend(self, pool: PoolId) -> None:
        """Let others have the free memory of a pool."""
    def _take_back(self, pool: PoolId, owned: frozenset[int]) -> list[int]:
        """End `_lend`; the addresses that others still have in use there."""
    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Serve matching requests from `pool` from now on; without a condition, all of them.

        The condition is one of: the request's stream, the requesting thread, the id of the capture that the stream is
        in, or a function of the stream, which runs inside the allocator at every request. The route that was begun
        last and matches wins. Adds a use of the pool, made if it is not there. Raises RequestError for two
        conditions, PoolError.
        """
    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the route to `pool`; the use that it added stays until `release_pool`.

        Raises PoolError if no requests are routed to it, CaptureError if a capture that used it is still under way.
        """
    def _live_addresses(self, pool: PoolId) -> list[int]: ...
    def check_pool_live_allocations(self, pool: Pool | PoolId, addresses: Collection[Buffer | int]) -> bool:
        """Whether exactly these blocks, given as addresses or buffers, are in use in the pool, a `Pool` or its id.

        Looks at every block of it. Raises PoolError, TypeError for what is no block.
        """
    def checkpoint_pool(self, pool: PoolId) -> PoolState:
        """The arrangement of a pool now, as a `PoolState`, for `restore_pool`.

        Looks at every block of it. Raises PoolError, CheckpointError if blocks wait for other streams.
        """
    def restore_pool(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Bring a pool back to `state`: (addresses freed by that, addresses in use again).

        A buffer whose block ended so frees nothing any more. A block that is in use again belongs to the buffer that
        had it when the state was taken, if that is still there; else to you, as though `malloc` had given it: free it,
        or make a `Buffer` of it. Waits for the streams that use blocks of the pool. Raises CheckpointError if the state
        is another allocator's, the pool has released or grown memory since, or such a stream is being captured;
        DeviceError.
        """
