"""Raises the exceptions for violated invariants; the checks of the engine and of the placements use it."""

from allotment._core.model.model cimport Block

cdef int violated(str rule, str detail) except -1
cdef str describe_block(const Block* block)
