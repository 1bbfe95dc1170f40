"""The calling thread's last failure, in PyTorch's words: `failure` and `take_failure` of the points."""

from allotment._core.model.model cimport Failure
from allotment.torch._deep.header cimport allotment_points

# Each sets the calling thread's failure, and returns 0.
cdef int note(object error) noexcept
cdef int fail(int device, const Failure* failure) noexcept with gil
cdef int called_from_inside() noexcept with gil

cdef void fill_failing(allotment_points* table) noexcept
