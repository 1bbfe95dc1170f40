"""How blocks enter and leave a free list: stored when free, split when allocated, merged with neighbours when freed.

Adjacent free blocks of one kind, mapped or not, are merged at once, so a free list holds maximal runs.

Cost: O(1) besides the free index. This is the hot path, so it is inline.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.block cimport (
    count_free_completed, cut_front, is_plain_of, is_split, is_within_reach, join, join_before, join_behind,
    note_handed_out_of, trace_free_completed)
from allotment._core.model.model cimport LEAVING, Block, Engine, Half, FreeList
from allotment._core.placement.pytorch.free_index cimport comes_before, index_best_fit, tree_remove
from allotment._core.records.stats cimport Stats, tally_down, tally_move, tally_up

# A block that was just freed is likely to be requested next, or to be merged with the next freed block. So it stays off
# its free list, as `last_freed`, until another block takes its place or the free lists are walked (`flush_last_freed`).
# Both happen in order of freeing, which is the order of age.

cdef void put_on_free_list(Block* block) noexcept nogil
cdef void take_off_free_list(Block* block) noexcept nogil
cdef void return_to_free_list(Block* block) noexcept nogil


cdef inline void flush_last_freed(Half* half) noexcept nogil:
    """Put the last freed block on its free list, so that the free lists and their counts are complete."""
    if half.last_freed != NULL:
        put_on_free_list(half.last_freed)
        half.last_freed = NULL


cdef inline void add_to_free_list_of(Half* half, Block* block, bint split) noexcept nogil:
    """Variant of `add_to_free_list` for callers that have the block's half, and know whether it is split."""
    if not split:           # otherwise its age does not matter, and its range may not be in the CPU's cache
        block.range.freed_at = half.search_count
    if half.last_freed != NULL:
        put_on_free_list(half.last_freed)
    half.last_freed = block


cdef inline void add_to_free_list(Block* block) noexcept nogil:
    """Store a free, mapped block as the last freed one, until the next block is freed."""
    add_to_free_list_of(block.free_list.half, block, is_split(block))


cdef inline void remove_from_free_list(Block* block) noexcept nogil:
    """Remove a free block from where it is stored. pre: its size and neighbours have not changed since"""
    cdef Half* half = block.free_list.half
    if half.last_freed == block:
        half.last_freed = NULL
    else:
        take_off_free_list(block)


cdef inline void claim(Block* block) noexcept nogil:
    """Put a free block out of reach for other threads, before its memory is released. Idempotent."""
    if block.withheld != LEAVING:
        remove_from_free_list(block)
        block.withheld = LEAVING


cdef inline Block* best_fit(FreeList* free_list, bytes_t size) noexcept nogil:
    """Return the smallest free block of at least `size`, the first in order among equals; does not remove it."""
    cdef Block* last_freed = free_list.half.last_freed
    cdef Block* found = index_best_fit(free_list, size)
    if last_freed == NULL or last_freed.free_list != free_list or last_freed.size < size:
        return found
    return last_freed if found == NULL or comes_before(last_freed, found) else found


cdef inline bint take_if_free(Half* half, const Block* block, Block* neighbour) noexcept nogil:
    """Remove a neighbour, if idle and of the same kind as the block, from the set it is in; return whether it was.

    pre: `half` is that of both
    """
    if neighbour == NULL or neighbour.allocated:
        return False
    if half.last_freed == neighbour and block.mapped:      # idle and mapped
        half.last_freed = NULL
        return True
    if not is_within_reach(neighbour) or neighbour.mapped != block.mapped:
        return False
    if neighbour.mapped:
        take_off_free_list(neighbour)
    else:
        tree_remove(&neighbour.free_list.unmapped, neighbour)
    return True


cdef inline bytes_t absorb_if_free(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge a neighbour, if idle and of the same kind, into a block that is in no set; return the bytes gained."""
    return join(engine, block, neighbour) if take_if_free(block.free_list.half, block, neighbour) else 0


cdef inline void count_taken(Engine* engine, int size_class, const Block* block, bytes_t size,
                             bint split) noexcept nogil:
    """Count how allocating a block of a plain segment, or its first `size` bytes, changes the segment's free parts."""
    cdef Stats* stats = &engine.stats
    cdef bint already_split = is_split(block)
    if not split:
        if already_split:
            tally_down(&stats.inactive_split, size_class, 1)
            tally_down(&stats.inactive_split_bytes, size_class, block.size)
    elif already_split:
        tally_down(&stats.inactive_split_bytes, size_class, size)
    else:
        tally_up(&stats.inactive_split, size_class, 1)
        tally_up(&stats.inactive_split_bytes, size_class, block.size - size)


cdef inline Block* hand_out(Engine* engine, Block* block, bytes_t size, bytes_t requested, bint split,
                     uint32_t context) noexcept nogil:
    """Allocate `block`, or its first `size` bytes if `split`.

    pre: on no free list, mapped; a block record and a slot in the address map are reserved
    """
    cdef Half* half = block.free_list.half
    cdef Block* rest
    if is_plain_of(half, block):
        count_taken(engine, half.size_class, block, size, split)
    if split:
        rest = block
        block = cut_front(engine, rest, size)
        add_to_free_list(rest)
    note_handed_out_of(engine, half, block, requested, context)
    return block


cdef inline void free_to_list_untraced(Engine* engine, Block* block) noexcept nogil:
    """Complete the free of a block: merge it with its free neighbours and keep the result."""
    cdef Stats* stats = &engine.stats
    cdef Half* half = block.free_list.half
    cdef int size_class = half.size_class
    cdef bytes_t size = block.size
    cdef Block* before = block.prev
    cdef Block* behind = block.next
    cdef count_t net_blocks = 0
    cdef count_t net_bytes = 0
    cdef bint split
    block.context = 0
    if take_if_free(half, block, before):
        net_blocks -= 1
        net_bytes -= <count_t> join_before(engine, block, before)
    if take_if_free(half, block, behind):
        net_blocks -= 1
        net_bytes -= <count_t> join_behind(engine, block, behind)
    split = is_split(block)
    add_to_free_list_of(half, block, split)
    if is_plain_of(half, block):
        if split:
            net_blocks += 1
            net_bytes += <count_t> block.size
        tally_move(&stats.inactive_split, size_class, net_blocks)
        tally_move(&stats.inactive_split_bytes, size_class, net_bytes)
    count_free_completed(engine, size_class, size, block.requested)


cdef inline void free_to_list(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Variant of `free_to_list_untraced` that also records the free in the trace."""
    trace_free_completed(engine, block, context)
    free_to_list_untraced(engine, block)
