"""The arrangement of a pool: between the engine's copy of it and the records that people can read."""

from allotment._core.edge.walk cimport Arrangement

cdef tuple state_of_segments(const Arrangement* arrangement)

# The other way. The caller clears the arrangement, also after a failure.
cdef int arrange_state(Arrangement* arrangement, object segments) except -1
