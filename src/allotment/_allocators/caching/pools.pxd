"""`allocator.pools`: creates, closes, routes to, saves and restores private pools by id.

`pool` contains the objects that users hold instead of ids.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport Part
from allotment._core.contract.types cimport bytes_t, count_t, thread_t
from allotment._core.edge.checkpoint cimport AddressList
from allotment._core.edge.walk cimport Arrangement
from allotment._core.model.model cimport Engine, Failure

ctypedef bint (*pool_step_t)(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil

cdef struct PoolFigures:
    count_t use_count
    bytes_t reserved_bytes

cdef class Pools(Part):
    cdef Allocator allocator

    cdef int close_forgotten(self) except -1
    cdef list live_addresses(self, object pool)
    cdef dict owners_in(self, const Arrangement* arrangement)
    cdef int hand_over(self, const AddressList* freed, const AddressList* created, dict buffers) except -1
    cdef int step_of_pool(self, object pool, pool_step_t step) except -1
    cdef int read_pool(self, object pool, PoolFigures* figures) except -1      # raises PoolError if it does not exist
    cdef object allocate_at(self, object size, object address, object stream, thread_t thread)
