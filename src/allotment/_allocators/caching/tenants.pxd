from libc.stdint cimport uint32_t

from allotment._allocators.caching.allocator cimport Allocator

cdef class Tenant:
    cdef Allocator allocator
    cdef str name
    cdef uint32_t context       # the context of its requests: see records/tenants
