"""`allocator.limits`: pools, tags and tenants have limits of their own, and users have a say when one is reached.

What limits are is told in `_core/mechanism/limits`, what a say is in `chain`.
"""

from libc.stdint cimport uint64_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport ObservedLimits
from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Limits as EngineLimits

cdef class Limits(ObservedLimits):
    cdef Allocator allocator

    cdef int read_limits(self, uint64_t first, uint64_t second, EngineLimits* limits) except -1
    cdef int put_limits(self, uint64_t first, uint64_t second, const EngineLimits* limits) except -1
    cdef int put_tenant_limit(self, object name, bytes_t most) except -1
    cdef bint is_tenant(self, object whose) except -1
    # The id of the pool of a tag or of a pool object; made if it is a tag's and not there, if that is asked for.
    cdef int find_pool(self, object whose, uint64_t* first, uint64_t* second, bint make=*) except -1
