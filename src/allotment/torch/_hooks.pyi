# Made from _hooks.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def bind_with(factory: Callable[[int], Tenant], current: Callable[[int], int] | None = None) -> None:
    """Register the factory that supplies each device's tenant; called on first use.

    `current` returns the handle of the calling thread's current stream on a device; without it, the default stream
    counts as current.
    """

def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""

def addresses() -> dict[str, int]:
    """Addresses of the functions: "allocate" and "free", and each hook under the name of PyTorch's setter."""
