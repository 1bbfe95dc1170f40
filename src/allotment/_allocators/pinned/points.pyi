# Made from points.pyx by `make stubs`: change it there.

from allotment._allocators.pinned.allocator import PinnedAllocator

def points_form() -> tuple[int, int]:
    """The version and the size of the tables."""

def points_address(allocator: PinnedAllocator) -> int:
    """The address of a table as in pinned_points.h, for C and C++.

    Whoever has it may call it at any time and on any thread, with or without the interpreter lock, so the allocator
    then lives as long as the process.
    """
