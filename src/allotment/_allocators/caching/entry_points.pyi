from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def entry_points(allocator: Allocator | Tenant) -> Any:
    """The allocator's functions for C as a capsule named "allotment.entry_points"; see entry.pxd for its form.

    What is allocated through a tenant's functions is the tenant's.

    The allocator lives as long as the process from then on.
    """

def entry_points_address(allocator: Allocator | Tenant) -> int:
    """The table's address, for ctypes and foreign runtimes."""
