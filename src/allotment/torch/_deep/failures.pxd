"""The calling thread's last failure, with PyTorch's message."""

from allotment._core.model.model cimport Failure
from allotment.torch._deep.header cimport allotment_interface

# Each sets the calling thread's failure, and returns 0.
cdef int set_failure(object error) noexcept
cdef int set_engine_failure(int device, const Failure* failure) noexcept with gil
cdef int called_from_inside() noexcept with gil

cdef void fill_failures(allotment_interface* table) noexcept
