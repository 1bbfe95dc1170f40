"""Memory that frees itself: see buffer.pyx."""

from allotment._allocators.owners cimport Owners
from allotment._core.contract.types cimport address_t, bytes_t

cdef class Buffer:
    cdef object allocator
    cdef Owners owners          # of its allocator's blocks; None if a block has no other owner than the buffer
    cdef address_t address
    cdef bytes_t size
    cdef object stream
    cdef object __weakref__

    cdef int take_over(self, address_t address) except -1
    cdef bint has_block(self) noexcept
    cdef int check_block(self) except -1
    cdef int check_memory(self) except -1
    cdef bint is_host(self) except -1
    cdef bint is_cuda(self) except -1
