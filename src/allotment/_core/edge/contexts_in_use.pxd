"""Which contexts a reader can still ask about, for a framework that keeps the data behind its numbers."""

from libc.stdint cimport uint32_t

from allotment._core.model.model cimport Engine

ctypedef void (*visit_context_t)(void* self, uint32_t stack) noexcept nogil

# Visits the stack number of every block and every history record, some more than once. pre: inside
cdef void contexts_in_use(Engine* engine, visit_context_t visit, void* self) noexcept nogil
