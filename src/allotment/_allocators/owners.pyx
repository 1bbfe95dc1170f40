from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve


cdef class Owners:
    def __cinit__(self):
        if not map_init(&self.buffers):
            raise MemoryError("the host has no memory for the allocator's own records")

    def __dealloc__(self):
        map_clear(&self.buffers)

    cdef int reserve(self, size_t more) except -1:
        if not map_reserve(&self.buffers, more):
            raise MemoryError("the host has no memory for the allocator's own records")
        return 0

    cdef void put(self, address_t address, void* buffer) noexcept:
        map_put(&self.buffers, address, buffer)

    cdef void* owner_of(self, address_t address) noexcept:
        return map_get(&self.buffers, address)

    cdef void end(self, address_t address) noexcept:
        map_pop(&self.buffers, address)

    cdef bint give_up(self, address_t address, void* buffer) noexcept:
        if map_get(&self.buffers, address) != buffer:
            return False
        map_pop(&self.buffers, address)
        return True
