# Made from bound_devices.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment.torch._process_state import ProcessState

def bind_with(factory: Callable[[int], Tenant], state: ProcessState) -> None: ...
def allocator_of(device: int) -> Allocator: ...
