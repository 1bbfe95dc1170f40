"""One range of memory changing hands: split and handed out, freed and merged.

    free      |----------------------------- A ----------------------------|
    hand out  |---- new block: yours ----|------------ A: the rest --------|
    free      |-------------------------- the one freed -------------------|   absorbs its free neighbours

On a split the *front* is the new object and the rest keeps its identity: a segment's remembered context,
and the stale request size of a free block, move with it. On a merge the block being freed survives.

Cost: O(1) beside the free index.
"""

from libc.stdint cimport uint32_t

from allotment.core.model cimport Block, Engine, Range, Shelf
from allotment.core.types cimport address_t, bytes_t

cdef Block* block_new(Engine* engine, Shelf* shelf, Range* range_, address_t address, bytes_t size) noexcept nogil
cdef void block_drop(Engine* engine, Block* block) noexcept nogil
cdef void link_after(Block* block, Block* new) noexcept nogil
cdef void link_before(Block* block, Block* new) noexcept nogil
cdef bytes_t absorb_if_free(Engine* engine, Block* block, Block* neighbour) noexcept nogil
cdef Block* hand_out(Engine* engine, Block* block, bytes_t size, bytes_t requested, bint split,
                     uint32_t context) noexcept nogil
cdef void take_back(Engine* engine, Block* block, uint32_t context) noexcept nogil
cdef void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil


cdef inline bint is_idle(const Block* block) noexcept nogil:
    """Nobody has it and nothing is waited for: free or unmapped."""
    return not block.allocated and block.event_count == 0 and block.uses == NULL
