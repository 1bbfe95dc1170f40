"""Invariant failures as exceptions, for the checks of the engine and of placements."""

from allotment._core.model.model cimport Block

cdef int broken(str rule, str detail) except -1
cdef str show(const Block* block)
