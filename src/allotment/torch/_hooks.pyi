# Made from _hooks.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def bind_with(factory: Callable[[int], Tenant], current: Callable[[int], int] | None = None) -> None: ...
def allocator_of(device: int) -> Allocator: ...
def addresses() -> dict[str, int]: ...
