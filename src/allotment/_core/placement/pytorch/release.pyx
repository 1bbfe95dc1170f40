from libc.stddef cimport size_t
from libc.stdint cimport uint32_t
from libc.stdlib cimport free, qsort

from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.block cimport is_plain
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.segment cimport segment_forget, segment_give_back
from allotment._core.model.model cimport ASLEEP, Block, Engine, Failure, Pool, Half, FreeList
from allotment._core.placement.pytorch.expandable cimport free_again, give_back_if_empty, unmap_block
from allotment._core.placement.pytorch.free_index cimport comes_before, index_first, index_next, tree_first, tree_next
from allotment._core.placement.pytorch.release cimport BlockList
from allotment._core.placement.pytorch.free_lists cimport claim, return_to_free_list, flush_last_freed
from allotment._core.tools.arrays cimport make_room


cdef bint list_append(BlockList* list, Block* block) noexcept nogil:
    if not make_room(<void**> &list.blocks, &list.room, list.count, sizeof(Block*)):
        return False
    list.blocks[list.count] = block
    list.count += 1
    return True


cdef int in_free_set_order(const void* a, const void* b) noexcept nogil:
    cdef const Block* left = (<const Block**> a)[0]
    cdef const Block* right = (<const Block**> b)[0]
    if left.free_list.stream.handle != right.free_list.stream.handle:
        return -1 if left.free_list.stream.handle < right.free_list.stream.handle else 1
    return -1 if comes_before(left, right) else <int> comes_before(right, left)


cdef void list_sort(BlockList* list) noexcept nogil:
    if list.count > 1:      # an empty list has no array, which qsort needs
        qsort(list.blocks, list.count, sizeof(Block*), &in_free_set_order)


cdef bint segment_release(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil:
    """Release a segment. Has an unlocked section. pre: `block` is free, plain, and all of its segment"""
    claim(block)
    if not segment_give_back(engine, block, context, failure):
        return_to_free_list(block)
        return False
    segment_forget(engine, block)
    return True


cdef bint release_segments(Engine* engine, BlockList* list, bytes_t keep, uint32_t context,
                           Failure* failure) noexcept nogil:
    """Release the listed segments of a pool in order, until it holds at most `keep`. Has an unlocked section.

    pre: each block is free, plain, and all of its segment
    """
    cdef size_t i
    cdef bint ok = True
    claim_all(list)
    for i in range(list.count):
        if ok and list.blocks[i].free_list.half.pool.reserved_bytes > keep:
            ok = segment_release(engine, list.blocks[i], context, failure)
        else:
            return_to_free_list(list.blocks[i])
    return ok


cdef void claim_all(BlockList* list) noexcept nogil:
    """Put the listed blocks out of reach: while one is being released, no other thread may take the others."""
    cdef size_t i
    for i in range(list.count):
        claim(list.blocks[i])


cdef bint unmap_blocks(Engine* engine, BlockList* list, bytes_t keep, bint ok, uint32_t context,
                       Failure* failure) noexcept nogil:
    """Unmap the listed blocks of a pool in order, until it holds at most `keep`. Has an unlocked section. pre: claimed

    Releases ranges that are empty then. Blocks after a refusal go back where they were; if `ok` is False, all blocks
    do.
    """
    cdef size_t i
    for i in range(list.count):
        # A paused pool holds no memory: a resume need not back the blocks that are unmapped now.
        if ok and (list.blocks[i].free_list.half.pool.reserved_bytes > keep
                   or list.blocks[i].free_list.half.pool.sleep == ASLEEP):
            ok = (unmap_block(engine, list.blocks[i], context, failure)
                  and give_back_if_empty(engine, list.blocks[i], failure))
        else:
            list.blocks[i].withheld = 0
            free_again(engine, list.blocks[i])
    return ok


cdef bint collect_expandable(Half* half, BlockList* list) noexcept nogil:
    cdef FreeList* free_list = half.free_lists
    cdef Block* block
    if half.expandable_count == 0:
        return True
    while free_list != NULL:
        block = index_first(free_list)
        while block != NULL:
            # A block smaller than a page cannot contain one.
            if not is_plain(block) and block.size >= block.range.page and not list_append(list, block):
                return False
            block = index_next(free_list, block)
        free_list = free_list.next
    return True


cdef bint release_half(Engine* engine, Half* half, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    """Release wholly free plain segments, then unmap the free pages of expandable ones, down to `keep`.

    Has an unlocked section.
    """
    cdef BlockList plain, growing
    cdef Block* block
    cdef bint ok = True
    flush_last_freed(half)
    block = half.oldest
    plain.blocks = growing.blocks = NULL
    plain.count = plain.room = growing.count = growing.room = 0
    while block != NULL and ok:
        ok = list_append(&plain, block)
        block = block.newer
    ok = ok and collect_expandable(half, &growing)
    if not ok:
        host_memory_failed(failure)
    else:
        list_sort(&plain)
        list_sort(&growing)
        claim_all(&growing)
        ok = release_segments(engine, &plain, keep, context, failure)
        ok = unmap_blocks(engine, &growing, keep, ok, context, failure)
    free(plain.blocks)
    free(growing.blocks)
    return ok


cdef bint release_free_lists(
        Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    if pool == &engine.defaults:
        return (release_half(engine, &pool.large, keep, context, failure)
                and release_half(engine, &pool.small, keep, context, failure))
    return (release_half(engine, &pool.small, keep, context, failure)
            and release_half(engine, &pool.large, keep, context, failure))


cdef bint drop_ranges(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    """Release the ranges that a pool has reserved without any memory in them (their first map was refused)."""
    return (drop_ranges_of(engine, pool.small.free_lists, failure)
            and drop_ranges_of(engine, pool.large.free_lists, failure))


cdef bint drop_ranges_of(Engine* engine, FreeList* free_list, Failure* failure) noexcept nogil:
    cdef Block* block
    cdef Block* following
    while free_list != NULL:
        block = tree_first(free_list.unmapped) if free_list.unmapped != NULL else NULL
        while block != NULL:
            following = tree_next(block)
            if not give_back_if_empty(engine, block, failure):
                return False
            block = following
        free_list = free_list.next
    return True
