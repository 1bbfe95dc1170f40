# Made from points.pyx by `make stubs`: change it there.

from allotment._allocators.pinned.allocator import PinnedAllocator

def points_form() -> tuple[int, int]:
    """Return the version and the size of the tables."""

def points_address(allocator: PinnedAllocator) -> int:
    """Return the address of a table as in pinned_points.h, for C and C++.

    C code may call it at any time and on any thread, with or without the interpreter lock. So the allocator then lives
    as long as the process.
    """
