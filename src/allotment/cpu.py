"""Host memory kept by exact size: a cache for the CPU side of a program, for Python and for C."""

from allotment._allocators.host_cache.cache import (
    CachingAllocator,
    Guard,
    allocate,
    caching,
    current,
    entry_points,
    free,
    record_free,
    recorded_size,
    set_fill,
)

__all__ = [
    "CachingAllocator",
    "Guard",
    "allocate",
    "caching",
    "current",
    "entry_points",
    "free",
    "record_free",
    "recorded_size",
    "set_fill",
]
