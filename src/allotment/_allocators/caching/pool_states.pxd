"""Converts the arrangement of a pool between the engine's copy and readable records."""

from allotment._core.edge.walk cimport Arrangement

cdef tuple state_of_segments(const Arrangement* arrangement)

# The other direction. The caller clears the arrangement, even after a failure.
cdef int arrange_state(Arrangement* arrangement, object segments) except -1
