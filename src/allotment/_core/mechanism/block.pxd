"""One range of memory changing hands: cut and handed out, taken back and joined.

    free      |----------------------------- A ----------------------------|
    hand out  |---- new block: yours ----|------------ A: the rest --------|
    free      |-------------------------- the one freed -------------------|   joined with its free neighbours

On a cut the *front* is the new object and the rest keeps its identity: a segment's remembered context,
and the stale request size of a free block, move with it. On a join the block being freed survives.
Which blocks are cut and joined, and where free ones are kept, is for the placement of the pool to say.

Cost: O(1). This is the hot path, so it is all inline.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.address_map cimport address_put
from allotment._core.model.model cimport LEAVING, Block, Engine, Pool, Rack, Range, Shelf
from allotment._core.records.stats cimport SMALL, Stats, tally_down, tally_grow, tally_up
from allotment._core.records.tenants cimport TENANT_SHIFT, context_of_free
from allotment._core.records.trace cimport (
    ACTION_ALLOC, ACTION_FREE_COMPLETED, ACTION_FREE_REQUESTED, trace_report)
from allotment._core.tools.slab cimport slab_give, slab_take


cdef inline bint is_idle(const Block* block) noexcept nogil:
    """Free or unmapped: not allocated, and nothing is waited for."""
    return not block.allocated and block.event_count == 0 and block.uses == NULL


cdef inline bint is_within_reach(const Block* block) noexcept nogil:
    """Idle, and not on its way back to the device."""
    return is_idle(block) and block.deferred != LEAVING


cdef inline void give_order(Engine* engine, Block* block) noexcept nogil:
    """A new block's place among blocks of its size. By the rules either ranges have numbers, or blocks, or neither."""
    engine.blocks_numbered += engine.rules.numbers_blocks
    block.order = block.range.order + engine.blocks_numbered


cdef inline Block* block_record(Engine* engine, Shelf* shelf, Range* range_, address_t address,
                                bytes_t size) noexcept nogil:
    """All of a new block but its order."""
    cdef Block* block = <Block*> slab_take(&engine.block_slab)
    block.address = address
    block.size = size
    block.requested = 0
    block.prev = block.next = NULL
    block.shelf = shelf
    block.range = range_
    block.uses = NULL
    block.event_count = 0
    block.allocated = False
    block.mapped = True
    block.releasable = False
    block.deferred = False
    block.context = block.segment_context = 0
    return block


cdef inline Block* block_new(Engine* engine, Shelf* shelf, Range* range_, address_t address,
                             bytes_t size) noexcept nogil:
    """A mapped block without neighbours. pre: a record is reserved"""
    cdef Block* block = block_record(engine, shelf, range_, address, size)
    give_order(engine, block)
    return block


cdef inline Block* block_new_after(Engine* engine, const Block* other, address_t address, bytes_t size) noexcept nogil:
    """`block_new` in the range of another block, whose order is at hand and mostly the same."""
    cdef Block* block = block_record(engine, other.shelf, other.range, address, size)
    block.order = other.order
    if engine.rules.numbers_blocks:
        give_order(engine, block)
    return block


cdef inline void block_drop(Engine* engine, Block* block) noexcept nogil:
    slab_give(&engine.block_slab, block)


cdef inline void link_before(Block* block, Block* new) noexcept nogil:
    new.prev = block.prev
    new.next = block
    if block.prev != NULL:
        block.prev.next = new
    else:
        block.range.head = new
    block.prev = new


cdef inline void link_after(Block* block, Block* new) noexcept nogil:
    new.next = block.next
    new.prev = block
    if block.next != NULL:
        block.next.prev = new
    block.next = new


cdef inline bint is_plain(const Block* block) noexcept nogil:
    return block.range.page == 0


cdef inline bint is_split(const Block* block) noexcept nogil:
    return block.prev != NULL or block.next != NULL


cdef inline Block* cut_front(Engine* engine, Block* block, bytes_t size) noexcept nogil:
    """The first `size` bytes of a block as a new one; the rest stays. pre: in no set; a record is reserved"""
    cdef Block* front = block_new_after(engine, block, block.address, size)
    link_before(block, front)
    block.address += size
    block.size -= size
    return front


cdef inline bytes_t join(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge a neighbour into a block; bytes gained. pre: both in no set"""
    cdef bytes_t gained = neighbour.size
    if block.prev == neighbour:
        block.address = neighbour.address
        block.segment_context = neighbour.segment_context
        block.prev = neighbour.prev
        if block.prev != NULL:
            block.prev.next = block
        else:
            block.range.head = block
    else:
        block.next = neighbour.next
        if block.next != NULL:
            block.next.prev = block
    block.size += gained
    block_drop(engine, neighbour)
    return gained


cdef inline void note_handed_out_of(Engine* engine, const Rack* rack, Block* block, bytes_t requested,
                                    uint32_t context) noexcept nogil:
    """`note_handed_out` for who has read block.shelf.rack already, which the compiler would read again."""
    cdef Stats* stats = &engine.stats
    cdef int size_class = rack.size_class
    block.allocated = True
    block.requested = requested
    block.context = context
    address_put(engine, block)
    if engine.trace.on:
        if engine.trace.counting:
            engine.accounts[context >> TENANT_SHIFT].held += block.size
        trace_report(&engine.trace, ACTION_ALLOC, block.address, requested, block.shelf.stream.handle,
                     rack.pool.first, rack.pool.second, context)
    tally_up(&stats.allocation, size_class, 1)
    tally_up(&stats.allocated_bytes, size_class, block.size)
    tally_grow(&stats.active, size_class, 1)
    tally_grow(&stats.active_bytes, size_class, block.size)
    tally_up(&stats.requested_bytes, size_class, requested)
    if block.size >= engine.tuning.max_split:
        tally_up(&stats.oversize_allocations, SMALL, 1)


cdef inline void note_handed_out(Engine* engine, Block* block, bytes_t requested, uint32_t context) noexcept nogil:
    """A block is the user's from now on. pre: a place in the address map is reserved"""
    note_handed_out_of(engine, block.shelf.rack, block, requested, context)


cdef inline void trace_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """The first half of `note_free`."""
    cdef Rack* rack = block.shelf.rack
    if engine.trace.on:
        trace_report(&engine.trace, ACTION_FREE_COMPLETED, block.address, block.requested, block.shelf.stream.handle,
                     rack.pool.first, rack.pool.second, context_of_free(context, block.context))
    block.context = 0


cdef inline void count_free(Engine* engine, int size_class, bytes_t size, bytes_t requested) noexcept nogil:
    """The second half, which can wait until the block has changed."""
    cdef Stats* stats = &engine.stats
    tally_down(&stats.active, size_class, 1)
    tally_down(&stats.active_bytes, size_class, size)
    tally_down(&stats.requested_bytes, size_class, requested)


cdef inline void note_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """A block is free for good, and about to be changed. pre: taken back, nothing waited for"""
    trace_free(engine, block, context)
    count_free(engine, block.shelf.rack.size_class, block.size, block.requested)


cdef inline void take_back_untraced(Engine* engine, Block* block) noexcept nogil:
    """`take_back` while nothing is traced."""
    cdef Stats* stats = &engine.stats
    cdef int size_class = block.shelf.rack.size_class
    block.allocated = False
    tally_down(&stats.allocation, size_class, 1)
    tally_down(&stats.allocated_bytes, size_class, block.size)
    if block.size >= engine.tuning.max_split:
        tally_down(&stats.oversize_allocations, SMALL, 1)


cdef inline void take_back(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """The user is done with a block; whether it is free yet is for its streams to say. pre: out of the address map"""
    cdef Pool* pool = block.shelf.rack.pool
    take_back_untraced(engine, block)
    if engine.trace.on:
        if engine.trace.counting:
            engine.accounts[block.context >> TENANT_SHIFT].held -= block.size
        trace_report(&engine.trace, ACTION_FREE_REQUESTED, block.address, block.requested, block.shelf.stream.handle,
                     pool.first, pool.second, context_of_free(context, block.context))


cdef inline void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """The block is free for good, and its placement's."""
    block.shelf.rack.pool.placement.take_back(engine, block, context)
