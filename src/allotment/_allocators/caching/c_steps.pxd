"""Handlers for `Allocator.on_out_of_memory` that are C functions."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef struct Shortage:           # the facts that a handler gets; allotment.h declares the same struct
    size_t size                 # of this struct, as the package was compiled
    uint64_t requested, stream
    uint64_t device_free, device_total
    uint64_t reserved, allocated, waiting

ctypedef int (*step_t)(void* self, const Shortage* facts) noexcept nogil    # not 0: try again

# Returns a number for removing it.
cdef int c_step_add(object allocator, step_t step, void* self, int tries) except 0
cdef bint c_step_remove(int number) except -1       # False: no such handler
