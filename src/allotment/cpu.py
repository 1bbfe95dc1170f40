"""Caches host memory by exact size, for the CPU side of a program, from Python and from C."""

from allotment._allocators.host_cache.cache import (
    CachingAllocator,
    Guard,
    allocate,
    array,
    caching,
    current,
    empty,
    entry_points,
    free,
    record_free,
    recorded_size,
    set_fill,
)
from allotment._allocators.host_cache.system import System

__all__ = [
    "CachingAllocator",
    "Guard",
    "System",
    "allocate",
    "array",
    "caching",
    "current",
    "empty",
    "entry_points",
    "free",
    "record_free",
    "recorded_size",
    "set_fill",
]
