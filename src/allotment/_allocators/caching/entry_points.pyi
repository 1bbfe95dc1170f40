# Made from entry_points.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def entry_points(allocator: Allocator | Tenant) -> Any:
    """Return the C functions of an `Allocator`, or of a `Tenant`, as a capsule named "allotment.entry_points".

    Their form is the struct of entry_points.pxd. C code may call them at any time and on any thread, with or without
    the interpreter lock. So the allocator then lives as long as the process, and a hit from Python acquires the
    engine's lock too. Raises TypeError for any other object.
    """

def entry_points_address(allocator: Allocator | Tenant) -> int:
    """Return the address of the same table, for ctypes and foreign runtimes; see `entry_points`."""
