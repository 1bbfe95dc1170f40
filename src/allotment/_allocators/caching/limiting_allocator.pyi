# Made from limiting_allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.pooling_allocator import PoolingAllocator
from allotment._allocators.caching.pools import Pool, PoolId
from allotment._allocators.caching.tenants import Tenant
from allotment.errors import OutOfMemoryFacts

class LimitingAllocator(PoolingAllocator):
    """An engine whose pools, tags and tenants have limits; users hold an `Allocator`."""

    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """Say how much memory a tag may have, or a pool, a tenant, or (None) the allocator as a whole.

        Each is a number of bytes or a text such as "2GiB"; None, and what is not given, is no limit from now on. One of
        them is given at least: `hard=None` removes all.

        `hard`: requests that need more raise OutOfMemoryError, whose `facts.limited_by` says whose limit it was. Of a
        tag or pool it counts memory that is reserved, of a tenant memory in use. `soft`: before more than this is
        reserved, cached memory goes back, which waits for other streams; it refuses nothing. `reserved`: others leave
        this much to be had, within the allocator's limit or the device's memory.

        What is held already stays. Raises RequestError without any limit, and for a soft limit of, or memory reserved
        for, a tenant, which shares its cache with others; PoolError for a pool that is gone; TypeError for what is none
        of these. Safe to call from several threads.
        """
    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """Ask `step(facts)` before a request fails for want of memory: whether it should be tried again.

        Steps are asked in the order in which they were added, after all that the allocator does by itself (the cache is
        empty then), on the thread that asked and without any lock. A step may free, pause tags, wait, and use the
        allocator; what it asks for itself goes without steps. Each is asked `tries` times at most for one request;
        then, or when it returns False or raises, the next has its turn, and after the last the request raises
        OutOfMemoryError. What it raises is reported through `sys.unraisablehook`. `allotment.relief` has steps that
        wait, spill and trim.

        Gives a function that removes the step. Raises TypeError for what cannot be called, RequestError for less than
        one try. Safe to call from several threads.
        """
    def _frees_so_far(self) -> int:
        """A number that changes whenever a block is freed. Takes no lock."""
    def _pool_limit(self, pool: PoolId) -> int | None:
        """The hard limit of a pool."""
    def _set_pool_limit(self, pool: PoolId, limit: int | str | None) -> None:
        """Another hard limit; the other limits stay."""
    def _tag_limit(self, name: str) -> int | None:
        """The hard limit of a tag. Raises PoolError if it is not there."""
    def _tenant_limit(self, name: str) -> int | None:
        """What a tenant may hold."""
    def _set_tenant_limit(self, name: str, limit: int | str | None) -> None:
        """Let a tenant hold so much and no more."""
