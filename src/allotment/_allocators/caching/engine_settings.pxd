"""Settings as an allocator's engine has them; all that can fail comes before anything changes."""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.contract.table cimport Device

cdef int apply_to_engine(Allocator allocator, object settings) except -1
cdef int warn_of_plain_segments(Device device, object settings) except -1
# What ranges for each stream reserve, and telling the engine so.
cdef list reserves_of(Allocator allocator, object settings, dict classes)
cdef int apply_reserves(Allocator allocator, list reserves) except -1
