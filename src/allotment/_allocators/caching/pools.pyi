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

    `Allocator.pool` makes one as an object, which most programs use instead. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def create_or_incref(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None:
        """Make the pool with this id, or add a use to one that is there; `release_pool` takes the use back.

        Ids are (0, n) or (n, 0) with n >= 1. `allocator` and `placement` as for `pool`, and only for a pool that is
        not there yet. Raises PoolError, TypeError for an `allocator` that lacks one of its methods.
        """
    def release(self, pool: PoolId) -> None:
        """Take back one use of a pool. After the last, its memory goes as it becomes free and the cache is emptied.

        Raises PoolError if there is no such pool or it is not in use.
        """
    def close(self, pool: PoolId) -> None:
        """Release a pool, which lends no more, and give back what it has cached.

        Called from inside the allocator, by a collection or a callback, it is done when the allocator is entered next.
        Raises PoolError, DeviceError.
        """
    def _give_up_use(self, pool: PoolId) -> None:
        """`close_pool` for a user that has not made the pool: others may go on lending it."""
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """See `Allocator.empty_cache`."""
    def trim_to(self, size: int | str) -> int:
        """See `Allocator.trim_to`."""
    def use_count(self, pool: PoolId) -> int:
        """How many uses the pool has: by `Pool` objects, by `with` blocks, by graphs. Raises PoolError."""
    def reserved_bytes(self, pool: PoolId) -> int:
        """Physical memory that the pool holds now; (0, 0) is the default pool. Raises PoolError."""
    def set_use_on_oom(self, pool: PoolId, on: bool) -> None:
        """Let the pool lend its free memory to others when memory is out, or not. Raises PoolError."""
    def set_no_split(self, pool: PoolId) -> None:
        """Let the pool hand out whole segments from now on. Raises PoolError."""
    @property
    def _lent(self) -> set[PoolId]: ...
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
    def check_live_allocations(self, pool: Pool | PoolId, addresses: Collection[Buffer | int]) -> bool:
        """Whether exactly these blocks, given as addresses or buffers, are in use in the pool, a `Pool` or its id.

        Looks at every block of it. Raises PoolError, TypeError for what is no block.
        """
    def checkpoint(self, pool: PoolId) -> PoolState:
        """The arrangement of a pool now, as a `PoolState`, for `restore_pool`.

        Looks at every block of it. Raises PoolError, CheckpointError if blocks wait for other streams.
        """
    def restore(self, state: PoolState) -> tuple[list[int], list[int]]:
        """Bring a pool back to `state`: (addresses freed by that, addresses in use again).

        A buffer whose block ended so frees nothing any more. A block that is in use again belongs to the buffer that
        had it when the state was taken, if that is still there; else to you, as though `malloc` had given it: free it,
        or make a `Buffer` of it. Waits for the streams that use blocks of the pool. Raises CheckpointError if the state
        is another allocator's, the pool has released or grown memory since, or such a stream is being captured;
        DeviceError.
        """
    def set_reserve_class(self, stream: Stream | int, name: str) -> None:
        """Put a stream in a class of `expandable_segments_reserve_by_class`; "" takes it out of any.

        It counts for segments that are reserved from now on. Raises TypeError for a name that is not a text.
        """
    @property
    def caching(self) -> bool:
        """Whether requests go through the cache, which they do unless it is switched off.

        Off, every request is a device allocation of its own, and every free a device free; what is cached stays
        cached, and what came from the cache still goes back to it.
        """
    @caching.setter
    def caching(self, on: bool) -> None: ...
    def malloc_at(self, size: int | str, address: int, stream: Stream | int | None = None) -> int:
        """Allocate `size` bytes at exactly this address, out of free memory of the request's pool and stream.

        Nothing new is reserved. Size 0 gives address 0. Raises AddressError if the address is not a multiple of 512, or
        no free block holds all of it; SizeError, StreamError.
        """
    def malloc_as(self, size: int, stream: int, thread: int, address: int | None = None) -> int:
        """`malloc`, or `malloc_at`, as though called by thread number `thread`: for replaying recordings."""
