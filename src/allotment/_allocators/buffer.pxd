"""Memory that frees itself, and that other libraries can use without a copy.

A buffer is bytes: the buffer protocol, DLPack and `__cuda_array_interface__` export it as one dimension of uint8, which
users then view as they like. A consumer that got it by DLPack or the buffer protocol keeps it alive.

A slice is a buffer too. It has no block: it keeps alive the buffer of which it is a part.

Several threads may use one buffer. Its critical section guards what changes: `address`, `whole`, `views`, `closed`.
"""

from libc.stddef cimport size_t

from allotment._allocators.owners cimport Owners
from allotment._core.contract.types cimport address_t, bytes_t

cdef class Buffer:
    cdef object allocator
    cdef Owners owners          # of its allocator's blocks; None if a block can have no owner but the buffer
    cdef address_t address      # 0 for a buffer of 0 bytes, or once closed
    cdef bytes_t size
    cdef object stream
    cdef Buffer whole           # the buffer that it is a slice of; None if it has a block
    cdef size_t views           # arrays, capsules and slices that use it: it keeps its memory meanwhile
    cdef bint closed
    cdef bint finalized         # the last reference was dropped, and then a finalizer made a new one
    cdef object __weakref__

    cdef int take_over(self, address_t address) except -1
    cdef void give_back_at_the_end(self, address_t address) noexcept
    cdef int free_block(self, address_t address) except -1
    cdef int release(self) except -1
    cdef bint end(self) except -1
    cdef int add_view(self) except -1
    cdef void drop_view(self) noexcept
    cdef object exported(self, int kind, int index, bint with_version)
    cdef bint has_block(self) noexcept
    cdef int check_block(self) except -1
    cdef int check_memory(self) except -1
    cdef bint is_host(self) except -1
    cdef bint is_cuda(self) except -1
    cdef str device_name(self)

# If the object is a buffer, closes it, as its allocator's `free` does with a buffer; returns whether it was one.
cdef bint free_buffer(object given, object allocator) except -1
