"""Applies settings to an allocator's engine. Everything that can fail comes before any change."""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.contract.table cimport Device

cdef int apply_to_engine(Allocator allocator, object settings) except -1
cdef int warn_of_plain_segments(Device device, object settings) except -1
# Computes what ranges reserve for each stream; tells the engine.
cdef list reserves_of(Allocator allocator, object settings, dict classes)
cdef int apply_reserves(Allocator allocator, list reserves) except -1
