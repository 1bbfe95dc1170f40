from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport OUT_OF_MEMORY
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, count_t
from allotment._core.mechanism.block cimport block_drop, block_new, is_within_reach, link_after, link_before
from allotment._core.mechanism.captures cimport end_relaxed_capture, relax_capture
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.pool cimport count_reserved
from allotment._core.mechanism.ranges cimport (
    configured_range_bytes, map_pages, missing_bytes, range_give_back, range_reserve, unmap_pages)
from allotment._core.mechanism.streams cimport wait_unless_captured
from allotment._core.model.model cimport (
    NO_FAILURE, Block, Engine, Failure, FreeList, Pool, Range, Request, StreamRecord)
from allotment._core.placement.pytorch.classes cimport page_size
from allotment._core.placement.pytorch.free_index cimport tree_first, tree_insert, tree_next, tree_remove
from allotment._core.placement.pytorch.free_lists cimport absorb_if_free, claim, add_to_free_list, remove_from_free_list
from allotment._core.records.trace cimport ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP, trace_report
from allotment._core.tools.slab cimport slab_reserve


cdef void put_unmapped(Block* block) noexcept nogil:
    tree_insert(&block.free_list.unmapped, block)


cdef bytes_t range_size(const Engine* engine, const StreamRecord* stream, bytes_t page) noexcept nogil:
    """Return the size of an expandable range: an eighth more than the device has, unless set lower."""
    cdef bytes_t most = engine.total_memory + engine.total_memory // 8
    cdef bytes_t configured = configured_range_bytes(engine, stream)
    if configured != 0 and configured < most:
        most = configured
    return page * ((most + page - 1) // page)


cdef Block* find_place(Engine* engine, Request* request) noexcept nogil:
    """Return the first block, by address, from which free blocks, mapped or unmapped, add up to the request."""
    cdef FreeList* free_list = request.free_list
    cdef Block* hole
    cdef Block* start
    cdef Block* block
    cdef bytes_t room
    hole = tree_first(free_list.unmapped) if free_list.unmapped != NULL else NULL
    while hole != NULL:
        start = hole
        if hole.prev != NULL and is_within_reach(hole.prev):
            start = hole.prev
        room = 0
        block = start
        while block != NULL and is_within_reach(block):
            room += block.size
            if room >= request.rounded:
                return start
            block = block.next
        hole = tree_next(hole)
    return new_range(engine, request)


cdef Block* new_range(Engine* engine, Request* request) noexcept nogil:
    cdef FreeList* free_list = request.free_list
    cdef bytes_t page = page_size(&engine.tuning, free_list.half)
    cdef bytes_t size = range_size(engine, free_list.stream, page)
    cdef Range* range_
    cdef Block* block
    if request.rounded > size:
        # No range could hold it, and a newly reserved one would stay behind for good.
        device_failed(&request.failure, OUT_OF_MEMORY, b"chunk_create")
        return NULL
    if not slab_reserve(&engine.block_slab, 1):
        host_memory_failed(&request.failure)
        return NULL
    range_ = range_reserve(engine, free_list, page, size, &request.failure)
    if range_ == NULL:
        return NULL
    free_list.half.expandable_count += 1
    block = block_new(engine, free_list, range_, range_.base, range_.size)
    block.mapped = False
    range_.head = block
    put_unmapped(block)
    return block


cdef bint map_block(Engine* engine, Block* block, bytes_t size, uint32_t context, Failure* failure) noexcept nogil:
    """Back the front of an unmapped block. It absorbs its free mapped neighbours and goes on its free list."""
    cdef Pool* pool = block.free_list.half.pool
    cdef address_t start = block.address
    cdef bytes_t mapped
    cdef Block* tail
    if not slab_reserve(&engine.block_slab, 1):
        return host_memory_failed(failure)
    if not map_pages(engine, block.range, block.address, size, &mapped, failure):
        return False
    tree_remove(&block.free_list.unmapped, block)
    block.mapped = True
    if mapped < block.size:
        tail = block_new(engine, block.free_list, block.range, block.address + mapped, block.size - mapped)
        tail.mapped = False
        link_after(block, tail)
        block.size = mapped
        put_unmapped(tail)
    absorb_if_free(engine, block, block.prev)
    absorb_if_free(engine, block, block.next)
    add_to_free_list(block)
    count_reserved(engine, block.free_list.half, <count_t> mapped)
    engine.stats.device_allocs += 1
    trace_report(&engine.trace, ACTION_SEGMENT_MAP, start, mapped, block.free_list.stream.handle,
                 pool.first, pool.second, context)
    if block.prev == NULL and block.segment_context == 0:
        block.segment_context = context
    return True


cdef bytes_t growth_in_place(Engine* engine, Request* request) noexcept nogil:
    """Return how much `grow_in_place` would map; at most the request if no place for it exists."""
    cdef Block* block = find_place(engine, request)
    cdef bytes_t found = 0
    cdef bytes_t mapped = 0
    cdef bytes_t page
    if block == NULL:
        request.failure.reason = NO_FAILURE
        return request.rounded
    page = block.range.page
    while found < request.rounded:
        if not block.mapped:
            mapped += min(block.size, (request.rounded - found + page - 1) // page * page)
        found += block.size
        block = block.next
    return mapped


cdef Block* grow_in_place(Engine* engine, Request* request) noexcept nogil:
    """Return a free block of at least the request, off its free list; NULL with the reason in request.failure.

    Pages mapped before a refusal stay mapped and free.
    """
    cdef bint relaxed = relax_capture(engine, request.stream)
    cdef Block* block = map_place(engine, request, find_place(engine, request))
    end_relaxed_capture(engine, relaxed)
    if block != NULL:
        remove_from_free_list(block)
    return block


cdef Block* map_place(Engine* engine, Request* request, Block* block) noexcept nogil:
    """Map what `find_place` found, as far as the request needs it; return the one block that it has become."""
    cdef Block* following
    if block == NULL:
        return NULL
    if not block.mapped and not map_block(
            engine, block, min(block.size, request.rounded), request.context, &request.failure):
        return NULL
    while block.size < request.rounded:
        following = block.next
        if not map_block(engine, following, min(request.rounded - block.size, following.size), request.context,
                         &request.failure):
            return NULL
        block = following
    return block


cdef bint holds_a_page(const Block* block) noexcept nogil:
    """Whether some page lies wholly inside the block."""
    cdef bytes_t page = block.range.page
    cdef bytes_t offset = block.address - block.range.base
    return (offset + page - 1) // page < (offset + block.size) // page


cdef void free_again(Engine* engine, Block* block) noexcept nogil:
    """Put a mapped block that was out of reach on its free list: its neighbours may have become free meanwhile."""
    absorb_if_free(engine, block, block.prev)
    absorb_if_free(engine, block, block.next)
    add_to_free_list(block)


cdef bint unmap_block(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil:
    """Unmap the whole pages inside a free block once its stream is done; the parts at either end stay free.

    While the stream is in a capture, which waiting would break, no page is unmapped. Has an unlocked section.
    """
    cdef Pool* pool = block.free_list.half.pool
    cdef address_t start
    cdef bytes_t unmapped
    cdef bytes_t leading, trailing
    cdef Block* part
    cdef bytes_t away = 0
    cdef capture_t capture = 0
    cdef bint ok = True
    claim(block)
    if holds_a_page(block):
        ok = wait_unless_captured(engine, block.free_list.stream.handle, &capture, failure)
    if ok and not slab_reserve(&engine.block_slab, 2):
        ok = host_memory_failed(failure)
    unmapped = 0
    if ok and capture == 0:
        away = missing_bytes(block.range, block.address, block.size)
        ok = unmap_pages(engine, block.range, block.address, block.size, &start, &unmapped, failure)
        if not ok:
            away -= missing_bytes(block.range, start + unmapped, block.address + block.size - start - unmapped)
    block.withheld = 0
    if unmapped == 0:
        free_again(engine, block)
        return ok
    leading = start - block.address
    trailing = block.size - leading - unmapped
    block.address = start
    block.size = unmapped
    block.mapped = False
    if leading > 0:
        part = block_new(engine, block.free_list, block.range, start - leading, leading)
        link_before(block, part)
        free_again(engine, part)
    if trailing > 0:
        part = block_new(engine, block.free_list, block.range, start + unmapped, trailing)
        link_after(block, part)
        free_again(engine, part)
    absorb_if_free(engine, block, block.prev)
    absorb_if_free(engine, block, block.next)
    put_unmapped(block)
    pool.malloc_count -= 1
    block.free_list.half.away -= away
    count_reserved(engine, block.free_list.half, -(<count_t> (unmapped - away)))
    engine.stats.device_frees += 1
    trace_report(&engine.trace, ACTION_SEGMENT_UNMAP, start, unmapped, block.free_list.stream.handle,
                 pool.first, pool.second, context if context != 0 else block.segment_context)
    return ok


cdef bint give_back_if_empty(Engine* engine, Block* block, Failure* failure) noexcept nogil:
    """Release the addresses if an unmapped block is all that is left of its range."""
    if block.mapped or block.prev != NULL or block.next != NULL:
        return True
    tree_remove(&block.free_list.unmapped, block)
    if not range_give_back(engine, block.range, failure):
        put_unmapped(block)
        return False
    block.free_list.half.expandable_count -= 1
    block_drop(engine, block)
    return True
