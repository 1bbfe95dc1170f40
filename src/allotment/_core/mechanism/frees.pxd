"""Taking a block back from its user, now or when the engine is left.

A destructor can run in the middle of an engine operation, on the thread that is in it (a collection
inside a backend or callback written in Python). Its free is put on a list, and done before the engine is
left: never inside the other operation.
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
cdef bint free_later(Engine* engine, address_t address) noexcept nogil
cdef void finish_late_frees(Engine* engine) noexcept nogil


cdef inline bint is_freed_at_once(const Block* block) noexcept nogil:
    """Whether freeing what was found at an address needs no device call."""
    return block != NULL and block.uses == NULL
