"""An engine whose pools, tags and tenants have limits of their own, and whose users have a say when one is reached.

What limits are is told in `_core/mechanism/limits`, what a say is in `chain`.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.pooling_allocator cimport PoolingAllocator
from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Limits

cdef class LimitingAllocator(PoolingAllocator):
    cdef object chain                   # a Chain; None until it has a step

    cdef int read_limits(self, uint64_t first, uint64_t second, Limits* limits) except -1
    cdef int put_limits(self, uint64_t first, uint64_t second, const Limits* limits) except -1
    cdef int put_tenant_limit(self, object name, bytes_t most) except -1
    cdef bint is_tenant(self, object whose) except -1
    # The id of the pool of a tag or of a pool object; made if it is a tag's and not there, if that is asked for.
    cdef int find_pool(self, object whose, uint64_t* first, uint64_t* second, bint make=*) except -1
