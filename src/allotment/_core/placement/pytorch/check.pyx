from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.block cimport is_idle, is_plain, is_split, is_within_reach
from allotment._core.mechanism.invariant_failure cimport describe_block, violated
from allotment._core.model.model cimport BIN_COUNT, Block, Engine, Pool, Half, Range, FreeList
from allotment._core.placement.pytorch.free_index cimport comes_before, index_first, index_next, tree_first, tree_next
from allotment._core.records.stats cimport Totals


cdef int check_node(FreeList* free_list, Block* block, Block* before, bint mapped) except -1:
    if block.free_list != free_list or not is_within_reach(block) or block.mapped != mapped:
        violated("free lists hold only free blocks", describe_block(block))
    if before != NULL and not comes_before(before, block):
        violated("free lists are in order", f"{describe_block(before)} before {describe_block(block)}")
    if (block.left != NULL and block.left.parent != block) or (block.right != NULL and block.right.parent != block):
        violated("tree links agree", describe_block(block))
    return 0


cdef int check_bins(FreeList* free_list) except -1:
    cdef uint64_t bin
    if free_list.bins == NULL:
        return 0
    for bin in range(BIN_COUNT):
        if (free_list.words[bin >> 6] >> (bin & 63)) & 1 and free_list.bins[bin] == NULL:
            violated("bitmaps say which bins hold blocks", f"bin {bin}")
    for bin in range(BIN_COUNT // 64):
        if (free_list.words[bin] != 0) != ((free_list.summary >> bin) & 1):
            violated("bitmaps say which bins hold blocks", f"word {bin}")
    return 0


cdef int check_free_list(FreeList* free_list, count_t* free_blocks, bytes_t* free_bytes, count_t* unmapped) except -1:
    cdef Block* block = index_first(free_list)
    cdef Block* before = NULL
    while block != NULL:
        check_node(free_list, block, before, True)
        free_blocks[0] += 1
        free_bytes[0] += block.size
        before = block
        block = index_next(free_list, block)
    block = tree_first(free_list.unmapped) if free_list.unmapped != NULL else NULL
    before = NULL
    while block != NULL:
        check_node(free_list, block, before, False)
        unmapped[0] += 1
        before = block
        block = tree_next(block)
    return check_bins(free_list)


cdef int check_releasable(Half* half) except -1:
    cdef Block* block = half.oldest
    cdef Block* before = NULL
    cdef count_t count = 0
    cdef uint64_t freed_sum = 0
    while block != NULL:
        if not block.releasable or is_split(block) or not is_plain(block) or not is_within_reach(block):
            violated("only wholly free segments can be released", describe_block(block))
        if block.older != before or (before != NULL and before.range.freed_at > block.range.freed_at):
            violated("releasable blocks are in order of age", describe_block(block))
        count += 1
        freed_sum += block.range.freed_at
        before = block
        block = block.newer
    if half.newest != before or count != half.releasable_count or freed_sum != half.releasable_freed_sum:
        violated("the releasable list knows its length", f"{half.releasable_count} noted, {count} found")
    return 0


cdef int check_last_freed(Half* half) except -1:
    cdef Block* block = half.last_freed
    if block != NULL and (block.free_list.half != half or not is_within_reach(block) or not block.mapped
                          or block.releasable):
        violated("the last freed block is free, and on no free list", describe_block(block))
    return 0


cdef int check_block(const Range* range_, const Block* block) except -1:
    cdef Block* before = block.prev
    if before != NULL and is_within_reach(before) and is_within_reach(block) and before.mapped == block.mapped:
        violated("free neighbours are merged", f"{describe_block(before)} and {describe_block(block)}")
    if block.free_list != range_.free_list:
        violated("blocks stay on the free list of their range", describe_block(block))
    if not block.mapped and (range_.page == 0 or (block.address - range_.base) % range_.page != 0
                             or block.size % range_.page != 0):
        violated("unmapped blocks are whole pages", describe_block(block))
    return 0


cdef int check_half(Engine* engine, Half* half, Totals* totals) except -1:
    """Check the blocks of a pool, once over its ranges and once over its free lists."""
    cdef FreeList* free_list = half.free_lists
    cdef Range* range_ = engine.first_range
    cdef Block* block
    cdef count_t free_blocks = 0
    cdef count_t unmapped = 0
    cdef count_t releasable = 0
    cdef count_t expandable = 0
    cdef bytes_t free_bytes = 0
    while free_list != NULL:
        check_free_list(free_list, &free_blocks, &free_bytes, &unmapped)
        free_list = free_list.next
    if free_bytes != half.free_bytes:
        violated("a pool knows its free bytes", f"{half.free_bytes} noted, {free_bytes} found")
    check_releasable(half)
    check_last_freed(half)
    while range_ != NULL:
        block = range_.head if range_.free_list.half == half else NULL
        if block != NULL:
            expandable += range_.page != 0
            totals.segment[half.size_class] += range_.page == 0
        while block != NULL:
            check_block(range_, block)
            if is_idle(block) and is_plain(block) and is_split(block):
                totals.inactive_split[half.size_class] += 1
                totals.inactive_split_bytes[half.size_class] += block.size
            if is_within_reach(block) and block != half.last_freed:
                if block.mapped:
                    free_blocks -= 1
                    if is_plain(block) and not is_split(block):
                        releasable += 1
                else:
                    unmapped -= 1
            block = block.next
        range_ = range_.next
    if free_blocks != 0 or unmapped != 0:
        violated("every free block is on its free list", f"off by {free_blocks} free and {unmapped} unmapped blocks")
    if releasable != half.releasable_count:
        violated("every wholly free segment can be released", f"{releasable} found, {half.releasable_count} listed")
    if expandable != half.expandable_count:
        violated("a pool knows its expandable ranges", f"{half.expandable_count} noted, {expandable} found")
    return 0


cdef int check_free_lists(Engine* engine, Pool* pool, Totals* totals) except -1:
    check_half(engine, &pool.small, totals)
    check_half(engine, &pool.large, totals)
    return 0
