from allotment._core.mechanism.block cimport is_plain, is_split
from allotment._core.model.model cimport Block, Half
from allotment._core.placement.pytorch.free_index cimport index_insert, index_remove


cdef void put_on_free_list(Block* block) noexcept nogil:
    cdef Half* half = block.free_list.half
    half.free_bytes += block.size
    index_insert(block.free_list, block)
    if not is_split(block) and is_plain(block):
        block.releasable = True
        block.newer = NULL
        block.older = half.newest
        if half.newest != NULL:
            half.newest.newer = block
        else:
            half.oldest = block
        half.newest = block
        half.releasable_count += 1
        half.releasable_freed_sum += block.range.freed_at


cdef void return_to_free_list(Block* block) noexcept nogil:
    """Put back a claimed plain segment that could not be released, with the age it had."""
    cdef Half* half = block.free_list.half
    cdef Block* newer = half.oldest
    block.withheld = 0
    half.free_bytes += block.size
    index_insert(block.free_list, block)
    while newer != NULL and newer.range.freed_at <= block.range.freed_at:
        newer = newer.newer
    block.releasable = True
    block.newer = newer
    block.older = newer.older if newer != NULL else half.newest
    if block.older != NULL:
        block.older.newer = block
    else:
        half.oldest = block
    if newer != NULL:
        newer.older = block
    else:
        half.newest = block
    half.releasable_count += 1
    half.releasable_freed_sum += block.range.freed_at


cdef void take_off_free_list(Block* block) noexcept nogil:
    cdef Half* half = block.free_list.half
    half.free_bytes -= block.size
    index_remove(block.free_list, block)
    if block.releasable:
        block.releasable = False
        if block.older != NULL:
            block.older.newer = block.newer
        else:
            half.oldest = block.newer
        if block.newer != NULL:
            block.newer.older = block.older
        else:
            half.newest = block.older
        half.releasable_count -= 1
        half.releasable_freed_sum -= block.range.freed_at
