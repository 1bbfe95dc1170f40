"""Freeing a block for its user, now or before a thread leaves the engine.

A destructor can run in the middle of an engine operation, on the thread that runs it (a garbage collection inside a
backend or callback written in Python). Its free goes on a list, which is drained before the thread leaves the engine,
never inside the other operation.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport Block, Engine, Failure

cdef bint free_address(Engine* engine, address_t address, uint32_t context, Failure* failure) noexcept nogil
cdef void free_at_once(Engine* engine, Block* block, uint32_t context) noexcept nogil
cdef bint free_used_block(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef bint free_shared_or_used(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef bint free_special(Engine* engine, Block* block, address_t address, uint32_t context,
                       Failure* failure) noexcept nogil
cdef bint free_later(Engine* engine, address_t address, Failure* failure) noexcept nogil
cdef void finish_late_frees(Engine* engine) noexcept nogil


cdef inline bint is_freed_at_once(const Block* block) noexcept nogil:
    """Whether freeing the block found at an address needs no device call."""
    return block != NULL and block.uses == NULL
