# Made from limits.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.pool import Pool, PoolId
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.parts import ObservedLimits
from allotment.errors import OutOfMemoryFacts

class Limits(ObservedLimits):
    """How much memory pools, tags and tenants may have, and the functions called when it runs out: `allocator.limits`.

    Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def set(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None:
        """See `Allocator.set_limit`."""
    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]:
        """See `Allocator.on_out_of_memory`."""
    def _frees_so_far(self) -> int:
        """Return a number that changes whenever a block is freed. Takes no lock."""
    def _pool_limit(self, pool: PoolId) -> int | None:
        """Return the hard limit of a pool."""
    def _set_pool_limit(self, pool: PoolId, limit: int | str | None) -> None:
        """Change the hard limit; the other limits stay."""
    def _tag_limit(self, name: str) -> int | None:
        """Return the hard limit of a tag. Raises PoolError if the tag does not exist."""
    def _tenant_limit(self, name: str) -> int | None:
        """Return how much a tenant may hold."""
    def _set_tenant_limit(self, name: str, limit: int | str | None) -> None:
        """Limit how much a tenant may hold."""
    def add_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call `callback()` at every cache miss, before the device is asked; it returns whether it freed anything.

        It runs on the requesting thread, and may use this allocator and others: no lock is held meanwhile. Its own
        requests are served without callbacks. Threads that miss at the same time run it at the same time.
        `sys.unraisablehook` gets its exceptions. Raises TypeError if it is not callable.
        """
    def remove_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Stop calling a callback. Raises RequestError if it was not added, or is removed already."""
