"""An allocator's functions for C: one table of function pointers that never needs the interpreter."""

from allotment._allocators.caching.entry_points import entry_points, entry_points_address

__all__ = ["entry_points", "entry_points_address"]
