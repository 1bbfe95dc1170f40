# Made from entry_points.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def entry_points(allocator: Allocator | Tenant) -> Any: ...
def entry_points_address(allocator: Allocator | Tenant) -> int: ...
