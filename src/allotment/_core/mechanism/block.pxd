"""Splitting, allocating, freeing and merging blocks.

    free      |----------------------------- A ----------------------------|
    allocate  |---- new block: yours ----|------------ A: the rest --------|
    free      |-------------------------- the one freed -------------------|   merged with its free neighbours

On a split the *front* becomes a new block and the rest keeps its identity: a segment's context and the stale request
size of a free block stay with the rest. On a merge the block being freed survives. The pool's placement decides which
blocks to split and merge, and where to keep free ones.

Cost: O(1). This is the hot path, so all of it is inline.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.mechanism.address_map cimport address_put
from allotment._core.model.model cimport LEAVING, Block, Engine, Pool, Half, Range, FreeList
from allotment._core.records.stats cimport SMALL, Stats, tally_down, tally_grow, tally_up
from allotment._core.records.tenants cimport TENANT_SHIFT, context_of_free
from allotment._core.records.trace cimport (
    ACTION_ALLOC, ACTION_FREE_COMPLETED, ACTION_FREE_REQUESTED, trace_report)
from allotment._core.tools.slab cimport slab_give, slab_take


cdef inline bint is_idle(const Block* block) noexcept nogil:
    """Whether the block is free or unmapped: not allocated, and waiting for nothing."""
    return not block.allocated and block.event_count == 0 and block.uses == NULL


cdef inline bint is_within_reach(const Block* block) noexcept nogil:
    """Whether the block is idle, and its memory is not being returned to the device."""
    return is_idle(block) and block.withheld != LEAVING


cdef inline void give_order(Engine* engine, Block* block) noexcept nogil:
    """Set a new block's rank among blocks of its size. The rules number ranges, or blocks, or neither."""
    engine.blocks_numbered += engine.rules.numbers_blocks
    block.order = block.range.order + engine.blocks_numbered


cdef inline Block* block_record(Engine* engine, FreeList* free_list, Range* range_, address_t address,
                                bytes_t size) noexcept nogil:
    """Create a block with everything but its order."""
    cdef Block* block = <Block*> slab_take(&engine.block_slab)
    block.address = address
    block.size = size
    block.requested = 0
    block.prev = block.next = NULL
    block.free_list = free_list
    block.range = range_
    block.uses = NULL
    block.event_count = 0
    block.allocated = False
    block.mapped = True
    block.releasable = False
    block.withheld = 0
    block.context = block.segment_context = 0
    return block


cdef inline Block* block_new(Engine* engine, FreeList* free_list, Range* range_, address_t address,
                             bytes_t size) noexcept nogil:
    """Create a mapped block without neighbours. pre: a record is reserved"""
    cdef Block* block = block_record(engine, free_list, range_, address, size)
    give_order(engine, block)
    return block


cdef inline Block* block_new_after(Engine* engine, const Block* other, address_t address, bytes_t size) noexcept nogil:
    """Variant of `block_new` in the range of `other`, whose order is already loaded and mostly the same."""
    cdef Block* block = block_record(engine, other.free_list, other.range, address, size)
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


cdef inline bint is_plain_of(const Half* half, const Block* block) noexcept nogil:
    """Variant of `is_plain` for callers that have the block's half.

    It reads the range only if the half has expandable memory.
    """
    return half.expandable_count == 0 or is_plain(block)


cdef inline bint is_split(const Block* block) noexcept nogil:
    return block.prev != NULL or block.next != NULL


cdef inline Block* cut_front(Engine* engine, Block* block, bytes_t size) noexcept nogil:
    """Split off the first `size` bytes as a new block. pre: in no set; a record is reserved"""
    cdef Block* front = block_new_after(engine, block, block.address, size)
    link_before(block, front)
    block.address += size
    block.size -= size
    return front


cdef inline bytes_t join_before(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge the block before into a block; return the bytes gained. pre: both in no set"""
    cdef bytes_t gained = neighbour.size
    block.address = neighbour.address
    block.segment_context = neighbour.segment_context
    block.prev = neighbour.prev
    if block.prev != NULL:
        block.prev.next = block
    else:
        block.range.head = block
    block.size += gained
    block_drop(engine, neighbour)
    return gained


cdef inline bytes_t join_behind(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge the block behind into a block; return the bytes gained. pre: both in no set"""
    cdef bytes_t gained = neighbour.size
    block.next = neighbour.next
    if block.next != NULL:
        block.next.prev = block
    block.size += gained
    block_drop(engine, neighbour)
    return gained


cdef inline bytes_t join(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge a neighbour on either side."""
    if block.prev == neighbour:
        return join_before(engine, block, neighbour)
    return join_behind(engine, block, neighbour)


cdef inline void mark_handed_out(Engine* engine, Block* block, bytes_t requested, uint32_t context) noexcept nogil:
    """The first part of `note_handed_out`: what the block's address leads to."""
    block.allocated = True
    block.requested = requested
    block.context = context
    address_put(engine, block)


cdef inline void count_handed_out(Engine* engine, int size_class, bytes_t size, bytes_t requested) noexcept nogil:
    """The last part of `note_handed_out`, for a block that is not oversize."""
    cdef Stats* stats = &engine.stats
    tally_up(&stats.allocation, size_class, 1)
    tally_up(&stats.allocated_bytes, size_class, size)
    tally_grow(&stats.active, size_class, 1)
    tally_grow(&stats.active_bytes, size_class, size)
    tally_up(&stats.requested_bytes, size_class, requested)


cdef inline void note_handed_out_of(Engine* engine, const Half* half, Block* block, bytes_t requested,
                                    uint32_t context) noexcept nogil:
    """Variant of `note_handed_out` for callers that already loaded `block.free_list.half`; avoids a second load."""
    mark_handed_out(engine, block, requested, context)
    if engine.trace.on:
        if engine.trace.counting:
            engine.accounts[context >> TENANT_SHIFT].held += block.size
        trace_report(&engine.trace, ACTION_ALLOC, block.address, requested, block.free_list.stream.handle,
                     half.pool.first, half.pool.second, context)
    count_handed_out(engine, half.size_class, block.size, requested)
    if block.size >= engine.tuning.max_split:
        tally_up(&engine.stats.oversize_allocations, SMALL, 1)


cdef inline void note_handed_out(Engine* engine, Block* block, bytes_t requested, uint32_t context) noexcept nogil:
    """Record that a block is now allocated. pre: a slot in the address map is reserved"""
    note_handed_out_of(engine, block.free_list.half, block, requested, context)


cdef inline void trace_free_completed(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Record the completed free in the trace: the first half of `note_free_completed`."""
    cdef Half* half = block.free_list.half
    if engine.trace.on:
        trace_report(&engine.trace, ACTION_FREE_COMPLETED, block.address, block.requested,
                     block.free_list.stream.handle,
                     half.pool.first, half.pool.second, context_of_free(context, block.context))
    block.context = 0


cdef inline void count_free_completed(Engine* engine, int size_class, bytes_t size, bytes_t requested) noexcept nogil:
    """Count a completed free: the second half, which may run after the block has changed."""
    cdef Stats* stats = &engine.stats
    tally_down(&stats.active, size_class, 1)
    tally_down(&stats.active_bytes, size_class, size)
    tally_down(&stats.requested_bytes, size_class, requested)


cdef inline void note_free_completed(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Record that a block is free for good; call before the block changes. pre: taken back, waiting for nothing"""
    trace_free_completed(engine, block, context)
    count_free_completed(engine, block.free_list.half.size_class, block.size, block.requested)


cdef inline void count_free_requested(Engine* engine, Block* block) noexcept nogil:
    """Variant of `note_free_requested` for when tracing is off."""
    cdef Stats* stats = &engine.stats
    cdef int size_class = block.free_list.half.size_class
    block.allocated = False
    tally_down(&stats.allocation, size_class, 1)
    tally_down(&stats.allocated_bytes, size_class, block.size)
    if block.size >= engine.tuning.max_split:
        tally_down(&stats.oversize_allocations, SMALL, 1)


cdef inline void note_free_requested(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Record that the user freed a block; its streams may still use it. pre: removed from the address map"""
    cdef Pool* pool = block.free_list.half.pool
    count_free_requested(engine, block)
    if engine.trace.on:
        if engine.trace.counting:
            engine.accounts[block.context >> TENANT_SHIFT].held -= block.size
        trace_report(&engine.trace, ACTION_FREE_REQUESTED, block.address, block.requested,
                     block.free_list.stream.handle,
                     pool.first, pool.second, context_of_free(context, block.context))


cdef inline void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Give a block that is free for good to its placement."""
    block.free_list.half.pool.placement.complete_free(engine, block, context)
