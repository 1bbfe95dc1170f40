# Made from pools.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.pool import Pool, PoolId, PoolState
from allotment._allocators.parts import Part
from allotment._devices.streams import Stream

class Pools(Part):
    """An allocator's private pools by id, and how requests are routed to them: `allocator.pools`.

    `Allocator.pool` makes a pool as an object, which most programs use instead. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def create_or_incref(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None:
        """Create the pool with this id, or add a use to an existing one; `release_pool` removes the use.

        Ids are (0, n) or (n, 0) with n >= 1. `allocator` and `placement` are as for `pool`, and only for a pool that
        does not exist yet. Raises PoolError; TypeError for an `allocator` that lacks one of its methods.
        """
    def release(self, pool: PoolId) -> None:
        """Remove one use of a pool. After the last, its memory is released as it becomes free and the cache is emptied.

        Raises PoolError if the pool does not exist or is not in use.
        """
    def close(self, pool: PoolId) -> None:
        """Release a pool, end its lending, and release what it has cached.

        If a garbage collection or a callback calls it inside the allocator, it takes effect when the allocator is
        entered next. Raises PoolError, DeviceError.
        """
    def _give_up_use(self, pool: PoolId) -> None:
        """`close_pool` for a user that did not create the pool: it may go on lending."""
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """See `Allocator.empty_cache`."""
    def trim_to(self, size: int | str) -> int:
        """See `Allocator.trim_to`."""
    def use_count(self, pool: PoolId) -> int:
        """Return the number of uses of the pool: `Pool` objects, `with` blocks, graphs. Raises PoolError."""
    def reserved_bytes(self, pool: PoolId) -> int:
        """Return the physical memory that the pool holds now; (0, 0) is the default pool. Raises PoolError."""
    def set_use_on_oom(self, pool: PoolId, on: bool) -> None:
        """Set whether the pool lends its free memory to other requests when memory is out. Raises PoolError."""
    def set_no_split(self, pool: PoolId) -> None:
        """Make the pool serve requests with whole segments from now on. Raises PoolError."""
    @property
    def _lent(self) -> set[PoolId]: ...
    def _lend(self, pool: PoolId) -> None:
        """Lend the free memory of a pool to other requests."""
    def _note_replay(self, pool: PoolId, stream: Stream | int) -> None:
        """Wait, before the memory of a pool is released, for a graph that uses it and runs on a stream."""
    def _take_back(self, pool: PoolId, owned: frozenset[int]) -> list[int]:
        """End `_lend`; return the addresses of blocks that others still have in use there."""
    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Serve matching requests from `pool` from now on; without a condition, all requests.

        The condition is one of: the request's stream, the requesting thread, the id of the capture that the stream is
        in, or a function of the stream, which runs inside the allocator at every request. The newest matching route
        wins. Adds a use of the pool, which is created if it does not exist. Raises RequestError for two conditions, and
        PoolError.
        """
    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the route to `pool`; the use that it added stays until `release_pool`.

        Raises PoolError if no requests are routed to it, CaptureError if a capture that used it has not ended yet.
        """
    def _live_addresses(self, pool: PoolId) -> list[int]: ...
    def check_live_allocations(self, pool: Pool | PoolId, addresses: Collection[Buffer | int]) -> bool:
        """Return whether exactly these blocks, given as addresses or buffers, are in use in the pool, a `Pool` or its
        id.

        Visits every block of the pool. Raises PoolError; TypeError for an object that is not a block.
        """
    def checkpoint(self, pool: PoolId) -> PoolState:
        """Return the current arrangement of a pool as a `PoolState`, for `restore_pool`.

        Visits every block of the pool. Raises PoolError; CheckpointError if blocks wait for other streams.
        """
    def restore(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Restore a pool to `state`; return (addresses that this freed, addresses in use again).

        A buffer whose block ends this way frees nothing later. A block that is in use again belongs to the buffer that
        owned it when the state was taken, if that buffer still exists. Otherwise it belongs to you, as if `malloc` had
        returned it: free it, or make a `Buffer` for it. Waits for the streams that use blocks of the pool. Raises
        CheckpointError if the state is another allocator's, the pool has released or grown memory since, or such a
        stream is being captured; DeviceError.
        """
    def set_reserve_class(self, stream: Stream | int, name: str) -> None:
        """Put a stream in a class of `expandable_segments_reserve_by_class`; "" removes it from its class.

        It applies to segments reserved from now on. Raises TypeError for a name that is not a text.
        """
    @property
    def caching(self) -> bool:
        """Whether requests use the cache; True unless it is switched off.

        When it is off, every request is a device allocation and every free a device free. Cached memory stays cached,
        and blocks that came from the cache still return to it.
        """
    @caching.setter
    def caching(self, on: bool) -> None: ...
    def malloc_at(self, size: int | str, address: int, stream: Stream | int | None = None) -> int:
        """Allocate `size` bytes at exactly this address, from free memory of the request's pool and stream.

        Reserves no new memory. Size 0 returns address 0. Raises AddressError if the address is not a multiple of 512,
        or no free block contains all of it; SizeError; StreamError.
        """
    def malloc_as(self, size: int, stream: int, thread: int, address: int | None = None) -> int:
        """Call `malloc` or `malloc_at` as thread number `thread`: for replaying recordings."""
