# Made from bound_devices.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment.torch._process_state import ProcessState

def bind_with(factory: Callable[[int], Tenant], state: ProcessState) -> None:
    """Register the factory of each device's tenant, called on first use. `state` is applied to all devices."""

def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
