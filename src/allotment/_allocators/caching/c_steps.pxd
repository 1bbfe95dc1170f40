"""Steps of `Allocator.on_out_of_memory` that are C functions."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

cdef struct Shortage:           # what a step is told; allotment.h has the same
    size_t size                 # of this struct, as the package was compiled
    uint64_t requested, stream
    uint64_t device_free, device_total
    uint64_t reserved, allocated, waiting

ctypedef int (*step_t)(void* self, const Shortage* facts) noexcept nogil    # not 0: try again

# A number by which it is removed.
cdef int c_step_add(object allocator, step_t step, void* self, int tries) except 0
cdef bint c_step_remove(int number) except -1       # False: there is none
