from typing import Any

from allotment.allocator import Allocator
from allotment.tenants import Tenant

def entry_points(allocator: Allocator | Tenant) -> Any:
    """The allocator's functions for C, for a user with a name if a tenant is given, as a capsule named "allotment.entry_points"; see entry.pxd for its form.

    The allocator lives as long as the process from then on.
    """

def entry_points_address(allocator: Allocator | Tenant) -> int:
    """The table's address, for ctypes and foreign runtimes."""
