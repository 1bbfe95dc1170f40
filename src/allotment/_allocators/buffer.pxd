"""Memory that frees itself, and how other libraries see it without a copy.

A buffer is bytes: the buffer protocol, DLPack and `__cuda_array_interface__` show it as one dimension of uint8; users
view it as what they like. Whoever got it by DLPack or the buffer protocol keeps it alive.

A slice is a buffer too. It has no block of its own: it keeps the buffer that it is a part of.
"""

from libc.stddef cimport size_t

from allotment._allocators.owners cimport Owners
from allotment._core.contract.types cimport address_t, bytes_t

cdef class Buffer:
    cdef object allocator
    cdef Owners owners          # of its allocator's blocks; None if a block has no other owner than the buffer
    cdef address_t address      # 0 if it was asked for 0 bytes, or is closed
    cdef bytes_t size
    cdef object stream
    cdef Buffer whole           # what it is a slice of; None if it has a block
    cdef size_t views           # arrays, capsules and slices that see it: it is not closed under them
    cdef bint closed
    cdef bint finalized         # its last reference went, and a finalizer has made another one
    cdef object __weakref__

    cdef int take_over(self, address_t address) except -1
    cdef void give_back_at_the_end(self, address_t address) noexcept
    cdef int give_back(self, address_t address) except -1
    cdef bint has_block(self) noexcept
    cdef int check_block(self) except -1
    cdef int check_memory(self) except -1
    cdef bint is_host(self) except -1
    cdef bint is_cuda(self) except -1
    cdef str device_name(self)

# Closes it, if it is a buffer: what `free` of its allocator does with one. Whether it was one.
cdef bint free_buffer(object given, object allocator) except -1
