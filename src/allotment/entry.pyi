from typing import Any

from allotment.allocator import Allocator

def entry_points(allocator: Allocator) -> Any:
    """The allocator's functions for C as a capsule named "allotment.entry_points"; see entry.pxd for its form.

    The allocator lives as long as the process from then on.
    """

def entry_points_address(allocator: Allocator) -> int:
    """The table's address, for ctypes and foreign runtimes."""
