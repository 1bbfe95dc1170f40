"""How blocks enter and leave a shelf: kept while free, split when allocated, merged with their neighbours when freed.

Adjacent free blocks of one kind, mapped or not, are merged at once, so a shelf holds maximal runs.

Cost: O(1) besides the free index. This is the hot path, so it is inline.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.block cimport (
    count_free, cut_front, is_plain, is_split, is_within_reach, join, note_handed_out_of, trace_free)
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


cdef inline void shelve(Block* block) noexcept nogil:
    """Keep a free, mapped block: at hand, until the next one comes."""
    cdef Rack* rack = block.shelf.rack
    block.range.freed_at = rack.search_count
    if rack.at_hand != NULL:
        put_on_shelf(rack.at_hand)
    rack.at_hand = block


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


cdef inline bytes_t absorb_if_free(Engine* engine, Block* block, Block* neighbour) noexcept nogil:
    """Merge a neighbour, if idle and of the same kind, into a block that is in no set; return the bytes gained."""
    if neighbour == NULL or not is_within_reach(neighbour) or neighbour.mapped != block.mapped:
        return 0
    if neighbour.mapped:
        unshelve(neighbour)
    else:
        tree_remove(&neighbour.shelf.unmapped, neighbour)
    return join(engine, block, neighbour)


cdef inline Block* hand_out(Engine* engine, Block* block, bytes_t size, bytes_t requested, bint split,
                     uint32_t context) noexcept nogil:
    """Allocate `block`, or its first `size` bytes if `split`.

    pre: on no shelf, mapped; a block record and a slot in the address map are reserved
    """
    cdef Stats* stats = &engine.stats
    cdef Rack* rack = block.shelf.rack
    cdef int size_class = rack.size_class
    cdef bint already_split = is_split(block)
    cdef Block* rest
    if split:
        rest = block
        block = cut_front(engine, rest, size)
        shelve(rest)
        if is_plain(rest):
            if already_split:
                tally_down(&stats.inactive_split_bytes, size_class, size)
            else:
                tally_up(&stats.inactive_split, size_class, 1)
                tally_up(&stats.inactive_split_bytes, size_class, rest.size)
    elif already_split and is_plain(block):
        tally_down(&stats.inactive_split, size_class, 1)
        tally_down(&stats.inactive_split_bytes, size_class, block.size)
    note_handed_out_of(engine, rack, block, requested, context)
    return block


cdef inline void free_to_shelf_untraced(Engine* engine, Block* block) noexcept nogil:
    """Complete the free of a block: merge it with its free neighbours and shelve it."""
    cdef Stats* stats = &engine.stats
    cdef int size_class = block.shelf.rack.size_class
    cdef bytes_t size = block.size
    cdef Block* before = block.prev
    cdef Block* behind = block.next
    cdef count_t net_blocks = 0
    cdef count_t net_bytes = 0
    cdef bytes_t gained
    block.context = 0
    gained = absorb_if_free(engine, block, before)
    if gained != 0:
        net_blocks -= 1
        net_bytes -= <count_t> gained
    gained = absorb_if_free(engine, block, behind)
    if gained != 0:
        net_blocks -= 1
        net_bytes -= <count_t> gained
    shelve(block)
    if is_plain(block):
        if is_split(block):
            net_blocks += 1
            net_bytes += <count_t> block.size
        tally_move(&stats.inactive_split, size_class, net_blocks)
        tally_move(&stats.inactive_split_bytes, size_class, net_bytes)
    count_free(engine, size_class, size, block.requested)


cdef inline void free_to_shelf(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Same, and records the free in the trace."""
    trace_free(engine, block, context)
    free_to_shelf_untraced(engine, block)
