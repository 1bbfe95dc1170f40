"""Segments for the private pools of a caching allocator, from a user's functions."""

from allotment._allocators.pluggable.plugged_memory cimport PluggedMemory
from allotment._core.contract.types cimport device_t
from allotment._core.model.model cimport RawAllocator

# For a pool of `device`'s allocator. The pool owns a reference to `memory`, which `drop` releases.
cdef RawAllocator lend_segments(PluggedMemory memory, device_t device) except *
