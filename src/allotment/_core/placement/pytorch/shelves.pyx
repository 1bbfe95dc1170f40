from allotment._core.mechanism.block cimport is_plain, is_split
from allotment._core.model.model cimport Block, Rack
from allotment._core.placement.pytorch.free_index cimport index_insert, index_remove


cdef void put_on_shelf(Block* block) noexcept nogil:
    cdef Rack* rack = block.shelf.rack
    rack.free_bytes += block.size
    index_insert(block.shelf, block)
    if not is_split(block) and is_plain(block):
        block.releasable = True
        block.newer = NULL
        block.older = rack.newest
        if rack.newest != NULL:
            rack.newest.newer = block
        else:
            rack.oldest = block
        rack.newest = block
        rack.releasable_count += 1
        rack.releasable_freed_sum += block.range.freed_at


cdef void return_to_shelf(Block* block) noexcept nogil:
    """Put back a claimed plain segment that could not be released, with the age it had."""
    cdef Rack* rack = block.shelf.rack
    cdef Block* newer = rack.oldest
    block.deferred = False
    rack.free_bytes += block.size
    index_insert(block.shelf, block)
    while newer != NULL and newer.range.freed_at <= block.range.freed_at:
        newer = newer.newer
    block.releasable = True
    block.newer = newer
    block.older = newer.older if newer != NULL else rack.newest
    if block.older != NULL:
        block.older.newer = block
    else:
        rack.oldest = block
    if newer != NULL:
        newer.older = block
    else:
        rack.newest = block
    rack.releasable_count += 1
    rack.releasable_freed_sum += block.range.freed_at


cdef void take_off_shelf(Block* block) noexcept nogil:
    cdef Rack* rack = block.shelf.rack
    rack.free_bytes -= block.size
    index_remove(block.shelf, block)
    if block.releasable:
        block.releasable = False
        if block.older != NULL:
            block.older.newer = block.newer
        else:
            rack.oldest = block.newer
        if block.newer != NULL:
            block.newer.older = block.older
        else:
            rack.newest = block.older
        rack.releasable_count -= 1
        rack.releasable_freed_sum -= block.range.freed_at
