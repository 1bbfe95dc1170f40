# Made from served.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment.torch._process_state import ProcessState

def serve_with(function: Callable[[int], Tenant], state: ProcessState) -> None:
    """Who serves a device: asked once a device, when memory of it is first wanted. `state` is what all are told."""

def allocator_of(device: int) -> Allocator:
    """The allocator behind PyTorch's memory on a device."""
