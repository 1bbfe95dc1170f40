"""An engine with private pools: made and given up by id, routed to, saved and restored.

`pools` has the objects that users hold instead of ids.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.recording_allocator cimport RecordingAllocator
from allotment._core.edge.checkpoint cimport AddressList
from allotment._core.edge.walk cimport Arrangement
from allotment._core.model.model cimport Engine, Failure, Pool as EnginePool

ctypedef bint (*pool_step_t)(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef class PoolingAllocator(RecordingAllocator):
    cdef dict owners_in(self, const Arrangement* arrangement)
    cdef int hand_over(self, const AddressList* freed, const AddressList* created, dict buffers) except -1
    cdef int step_of_pool(self, object pool, pool_step_t step) except -1
    cdef EnginePool* find_pool(self, object pool) except NULL    # pre: inside the engine; left if there is none
