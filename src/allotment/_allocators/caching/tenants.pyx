"""A named user of an allocator that others use too."""

cimport cython

from allotment._allocators.caching.allocator cimport Allocator
from allotment._core.records.tenants cimport tenant_context

from allotment._allocators.buffer import Buffer


@cython.final
cdef class Tenant:
    def __cinit__(self, Allocator allocator not None, str name not None):
        self.allocator = allocator
        self.name = name
        self.context = tenant_context(name)

    def __repr__(self):
        return f"<Tenant {self.name!r} of {self.allocator!r}>"

    @cython.binding(False)      # as in Allocator
    @cython.embedsignature.format("clinic")
    def malloc(self, size, stream=0):
        return self.allocator.allocate(size, stream, 0, self.context)

    @cython.binding(False)
    @cython.embedsignature.format("clinic")
    def free(self, address, /):
        self.allocator.free(address)

    def empty(self, size, stream=0):
        return Buffer(self.allocator, self.malloc(size, stream), size, stream)

    def record_stream(self, block, stream):
        self.allocator.record_stream(block, stream)
