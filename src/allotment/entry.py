"""An allocator's functions for C: one table of function pointers that never need the interpreter."""

from pathlib import Path

from allotment._allocators.caching.entry_points import entry_points, entry_points_address

__all__ = ["entry_points", "entry_points_address", "get_include"]


def get_include() -> str:
    """Return the folder of the header `allotment.h`, which declares the table: for the compiler's option -I."""
    return str(Path(__file__).parent / "include")
