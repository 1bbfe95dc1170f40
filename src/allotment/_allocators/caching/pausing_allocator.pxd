"""An engine whose tags can be paused: their memory goes back to the device, their addresses stay.

How that is done to a pool is told in `_core/mechanism/pausing`, what becomes of its contents in `contents`.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.limiting_allocator cimport LimitingAllocator
from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Failure, Pool as EnginePool

cdef class PausingAllocator(LimitingAllocator):
    cdef dict kept                      # (first, second) of each pool that sleeps -> its Contents, None if not kept

    cdef list ranges_of(self, uint64_t first, uint64_t second)      # (base, size) each
    cdef EnginePool* found(self, uint64_t first, uint64_t second, Failure* failure) noexcept    # pre: inside
    cdef bytes_t pause_pool(self, uint64_t first, uint64_t second, bint keep) except? 0
    cdef int resume_by_chain(self, uint64_t first, uint64_t second, object progress, object error) except -1
    cdef int note_asleep(self, uint64_t first, uint64_t second) except -1
    cdef str words_of_pool(self, uint64_t first, uint64_t second)
    cdef object name_of_pool(self, uint64_t first, uint64_t second)
    cdef int resume_pool(self, uint64_t first, uint64_t second, object progress) except -1
