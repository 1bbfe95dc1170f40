"""Which contexts somebody can still ask about: for a framework that keeps what its numbers stand for."""

from libc.stdint cimport uint32_t

from allotment._core.model.model cimport Engine

ctypedef void (*visit_context_t)(void* self, uint32_t stack) noexcept nogil

# Of every block and every record of the history, the number of the stack; also more than once. pre: inside
cdef void contexts_in_use(Engine* engine, visit_context_t visit, void* self) noexcept nogil
