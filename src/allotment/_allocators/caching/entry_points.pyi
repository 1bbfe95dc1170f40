# Made from entry_points.pyx by `make stubs`: change it there.

from typing import Any

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant

def entry_points(allocator: Allocator | Tenant) -> Any:
    """The C functions of an `Allocator`, or of a `Tenant` of one, as a capsule named "allotment.entry_points".

    Their form is the struct of entry_points.pxd. Whoever has them may call them at any time and on any thread, with or
    without the interpreter lock, so the allocator then lives as long as the process, and a hit from Python takes the
    engine's lock too. Raises TypeError for anything else.
    """

def entry_points_address(allocator: Allocator | Tenant) -> int:
    """The address of the same table, for ctypes and foreign runtimes; see `entry_points`."""
