"""How blocks enter and leave a shelf: kept while free, split when allocated, merged with their neighbours when freed.

Adjacent free blocks of one kind, mapped or not, are merged at once, so a shelf holds maximal runs.

Cost: O(1) besides the free index. This is the hot path, so it is inline.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.block cimport (
    count_free, cut_front, is_plain_of, is_split, is_within_reach, join, join_before, join_behind, note_handed_out_of,
    trace_free)
from allotment._core.model.model cimport LEAVING, Block, Engine, Rack, Shelf
from allotment._core.placement.pytorch.free_index cimport comes_before, index_best_fit, tree_remove
from allotment._core.records.stats cimport Stats, tally_down, tally_move, tally_up

# A block that was just freed is likely to be requested next, or to be merged with the next one freed. So the last freed
# block stays at hand. It goes on its shelf when another takes its place, or before somebody walks the shelves (`tidy`).
# Both happen in order of freeing, which is the order of age.

cdef void put_on_shelf(Block* block) noexcept nogil
cdef void take_off_shelf(Block* block) noexcept nogil
cdef void return_to_shelf(Block* block) noexcept nogil


cdef inline void tidy(Rack* rack) noexcept nogil:
    """Flush the block at hand, so that the shelves, and the counts of their content, are complete."""
    if rack.at_hand != NULL:
        put_on_shelf(rack.at_hand)
        rack.at_hand = NULL


cdef inline void shelve_of(Rack* rack, Block* block, bint split) noexcept nogil:
    """Variant of `shelve` for callers that have the block's rack, and know whether it is split."""
    if not split:           # else nobody asks for its age, and its range may be out of the CPU's cache
        block.range.freed_at = rack.search_count
    if rack.at_hand != NULL:
        put_on_shelf(rack.at_hand)
    rack.at_hand = block


cdef inline void shelve(Block* block) noexcept nogil:
    """Keep a free, mapped block: at hand, until the next one comes."""
    shelve_of(block.shelf.rack, block, is_split(block))


cdef inline void unshelve(Block* block) noexcept nogil:
    """Remove a free block from where it is kept. pre: its size and neighbours have not changed since"""
    cdef Rack* rack = block.shelf.rack
    if rack.at_hand == block:
        rack.at_hand = NULL
    else:
        take_off_shelf(block)


cdef inline void claim(Block* block) noexcept nogil:
    """Put a free block out of reach for other threads, to release its memory. Does nothing the second time."""
    if block.deferred != LEAVING:
        unshelve(block)
        block.deferred = LEAVING


cdef inline Block* best_fit(Shelf* shelf, bytes_t size) noexcept nogil:
    """Return the smallest free block of at least `size`, the first in order among equals; does not remove it."""
    cdef Block* at_hand = shelf.rack.at_hand
    cdef Block* found = index_best_fit(shelf, size)
    if at_hand == NULL or at_hand.shelf != shelf or at_hand.size < size:
        return found
    return at_hand if found == NULL or comes_before(at_hand, found) else found


cdef inline bint take_if_free(Rack* rack, const Block* block, Block* neighbour) noexcept nogil:
    """Remove a neighbour, if idle and of the same kind as the block, from the set it is in; return whether it was.

    pre: `rack` is that of both
    """
    if neighbour == NULL or neighbour.allocated:
        return False
    if rack.at_hand == neighbour and block.mapped:      # idle and mapped
        rack.at_hand = NULL
        return True
    if not is_within_reach(neighbour) or neighbour.mapped != block.mapped:
        return False
    if neighbour.mapped:
        take_off_shelf(neighbour)
    else:
        tree_remove(&neighbour.shelf.unmapped, neighbour)
    return True


cdef inline bytes_t absorb_if_free(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge a neighbour, if idle and of the same kind, into a block that is in no set; return the bytes gained."""
    return join(engine, block, neighbour) if take_if_free(block.shelf.rack, block, neighbour) else 0


cdef inline void count_taken(Engine* engine, int size_class, const Block* block, bytes_t size,
                             bint split) noexcept nogil:
    """Count what allocating a block of a plain segment, or its first `size` bytes, does to the free parts of it."""
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

    pre: on no shelf, mapped; a block record and a slot in the address map are reserved
    """
    cdef Rack* rack = block.shelf.rack
    cdef Block* rest
    if is_plain_of(rack, block):
        count_taken(engine, rack.size_class, block, size, split)
    if split:
        rest = block
        block = cut_front(engine, rest, size)
        shelve(rest)
    note_handed_out_of(engine, rack, block, requested, context)
    return block


cdef inline void free_to_shelf_untraced(Engine* engine, Block* block) noexcept nogil:
    """Complete the free of a block: merge it with its free neighbours and shelve it."""
    cdef Stats* stats = &engine.stats
    cdef Rack* rack = block.shelf.rack
    cdef int size_class = rack.size_class
    cdef bytes_t size = block.size
    cdef Block* before = block.prev
    cdef Block* behind = block.next
    cdef count_t net_blocks = 0
    cdef count_t net_bytes = 0
    cdef bint split
    block.context = 0
    if take_if_free(rack, block, before):
        net_blocks -= 1
        net_bytes -= <count_t> join_before(engine, block, before)
    if take_if_free(rack, block, behind):
        net_blocks -= 1
        net_bytes -= <count_t> join_behind(engine, block, behind)
    split = is_split(block)
    shelve_of(rack, block, split)
    if is_plain_of(rack, block):
        if split:
            net_blocks += 1
            net_bytes += <count_t> block.size
        tally_move(&stats.inactive_split, size_class, net_blocks)
        tally_move(&stats.inactive_split_bytes, size_class, net_bytes)
    count_free(engine, size_class, size, block.requested)


cdef inline void free_to_shelf(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Same, and records the free in the trace."""
    trace_free(engine, block, context)
    free_to_shelf_untraced(engine, block)
