"""Taking a block back from its user, now or when the engine is left.

A destructor can run in the middle of an engine operation, on the thread that is in it (a collection
inside a backend or callback written in Python). Its free is put on a list, and done before the engine is
left: never inside the other operation.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t
from allotment._core.mechanism.address_map cimport address_take
from allotment._core.mechanism.block cimport free_at_once
from allotment._core.model.model cimport Block, Engine, Failure

cdef bint free_used_block(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef bint free_special(Engine* engine, Block* block, address_t address, uint32_t context,
                       Failure* failure) noexcept nogil
cdef bint free_later(Engine* engine, address_t address) noexcept nogil
cdef void finish_late_frees(Engine* engine) noexcept nogil


cdef inline bint is_freed_at_once(const Block* block) noexcept nogil:
    """Whether freeing what was found at an address asks nobody."""
    return block != NULL and block.uses == NULL


cdef inline bint free_address(Engine* engine, address_t address, uint32_t context, Failure* failure) noexcept nogil:
    """pre: address != 0"""
    cdef Block* block = address_take(engine, address)
    if not is_freed_at_once(block):
        return free_special(engine, block, address, context, failure)
    free_at_once(engine, block, context)
    return True
