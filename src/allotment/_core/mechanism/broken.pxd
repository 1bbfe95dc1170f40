"""A rule that does not hold, as an exception. For the checks of invariants, of the engine and of placements."""

from allotment._core.model.model cimport Block

cdef int broken(str rule, str detail) except -1
cdef str show(const Block* block)
