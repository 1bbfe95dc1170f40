"""`allocator.limits`: limits of pools, tags and tenants, and handlers for running out of memory.

`_core/mechanism/limits` explains limits, and `handlers` explains handlers.
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
    # Finds the id of the pool of a tag or of a pool object. With `make`, creates a tag's pool that does not exist.
    cdef int find_pool(self, object whose, uint64_t* first, uint64_t* second, bint make=*) except -1
