from libc.stdint cimport uint64_t
from libc.stdlib cimport free

from allotment._core.contract.table cimport OUT_OF_MEMORY
from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.expandable cimport grow_in_place
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed, note_device_memory
from allotment._core.mechanism.free_index cimport index_below, index_best_fit, index_largest, index_next, index_prev
from allotment._core.mechanism.frees cimport finish_late_frees
from allotment._core.mechanism.pool cimport (
    is_plain, is_split, pool_release, rack_for_size, route_begin, route_end, route_find, shelf_for, tidy)
from allotment._core.mechanism.reclaim cimport BlockList, list_append, list_sort, release_everything, release_segments
from allotment._core.mechanism.segment cimport segment_obtain, segment_release
from allotment._core.model.model cimport (
    FAILED_DEVICE, FAILED_OUT_OF_MEMORY, FILTER_THREAD, NO_FAILURE, Block, Engine, Failure, Filter, FreeMemoryCallback,
    Pool, Rack, Request, Shelf)
from allotment._core.model.sizes cimport segment_size
from allotment._core.records.stats cimport tally_now
from allotment._core.records.trace cimport ACTION_OOM, trace_report


# --- which block: the expandable cases --------------------------------------------------------------------------

cdef inline bytes_t size_with_room_to_grow(const Block* block) noexcept nogil:
    if block.next != NULL and not block.next.mapped:
        return block.size + block.next.size
    return block.size


cdef Block* prefer_closed_fit(Shelf* shelf, Block* block) noexcept nogil:
    """Step from a block at the growing edge to a fit that costs no room to grow, if the next ones offer it."""
    cdef Block* following
    tidy(shelf.rack)
    while not is_plain(block):
        following = index_next(shelf, block)
        if following == NULL or size_with_room_to_grow(following) >= size_with_room_to_grow(block):
            break
        block = following
    return block


cdef Block* skip_expandable(Shelf* shelf, Block* block) noexcept nogil:
    tidy(shelf.rack)
    while block != NULL and not is_plain(block):
        block = index_next(shelf, block)
    return block


# --- when to grow ------------------------------------------------------------------------------------------

cdef Block* grow(Engine* engine, Request* request, bint last_try) noexcept nogil:
    """New memory within the limit; NULL with the reason in request.failure (out of memory: more can be tried)."""
    cdef Pool* pool = request.shelf.rack.pool
    cdef Block* block
    request.failure.reason = NO_FAILURE
    if last_try:
        engine.stats.alloc_retries += 1
    if engine.limited and <bytes_t> tally_now(&engine.stats.reserved_bytes) + request.segment > engine.limit:
        device_failed(&request.failure, OUT_OF_MEMORY, b"limit")
        return NULL
    if not request.expandable:
        return segment_obtain(engine, request)
    block = grow_in_place(engine, request)
    if block != NULL:
        pool.malloc_count += 1
    return block


cdef inline bint is_worth_another_try(const Request* request) noexcept nogil:
    return request.failure.reason == FAILED_DEVICE and request.failure.status == OUT_OF_MEMORY


cdef Block* borrow(Engine* engine, Request* request) noexcept nogil:
    """Step 5. A lender is routed to for the time of the search, which fails if it is routed to already."""
    cdef Pool* pool = engine.first_pool
    cdef Pool* following
    cdef Filter mine
    cdef Shelf* shelf
    cdef Block* block = NULL
    mine.kind = FILTER_THREAD
    mine.value = 0
    mine.accepts = NULL
    mine.drop = NULL
    mine.self = NULL
    while pool != NULL and block == NULL:
        following = pool.next
        if pool.use_on_oom:
            if not route_begin(engine, pool.first, pool.second, mine, &request.failure):
                return NULL
            shelf = shelf_for(engine, rack_for_size(pool, request.rounded), request.shelf.stream)
            if shelf == NULL:
                host_memory_failed(&request.failure)
            else:
                block = search(engine, shelf, request.rounded, False)
            route_end(engine, route_find(engine, pool.first, pool.second))
            pool_release(engine, pool.first, pool.second, &request.failure)
        pool = following
    if block != NULL:
        request.expandable = False
    return block


# --- what to give back -------------------------------------------------------------------------------------

cdef bint collect_garbage(Engine* engine, Request* request) noexcept nogil:
    """Step 3: release unused large segments, oldest half first, until reserved memory is below the threshold.

    The list of releasable blocks is in order of age, so the blocks of at least average age are its front.
    """
    cdef Rack* rack = &engine.defaults.large
    cdef bytes_t threshold = <bytes_t> (engine.tuning.gc_threshold * <double> engine.limit)
    cdef bytes_t reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
    cdef bytes_t reclaimed = 0
    cdef double average_age
    cdef BlockList list
    cdef Block* block
    cdef bint ok = True
    if reserved <= threshold:
        return True
    list.blocks = NULL
    list.room = 0
    tidy(rack)
    while ok and reclaimed < reserved - threshold and rack.releasable_count > 0:
        average_age = (<double> (<uint64_t> rack.releasable_count * rack.search_count - rack.releasable_gc_sum)
                       / <double> rack.releasable_count)
        list.count = 0
        block = rack.oldest
        while block != NULL and <double> (rack.search_count - block.gc_base) >= average_age:
            if not list_append(&list, block):
                break
            reclaimed += block.size
            block = block.newer
        if list.count == 0:
            break
        list_sort(&list)
        ok = release_segments(engine, &list, request.context, &request.failure)
    free(list.blocks)
    return ok


cdef bint release_oversize(Engine* engine, Request* request, bint* enough) noexcept nogil:
    """Step 6: release one oversize block that is large enough, or several that are together."""
    cdef Shelf* shelf = request.shelf
    cdef bytes_t wanted = max(request.rounded, engine.tuning.max_split)
    cdef bytes_t released = 0
    cdef bytes_t size
    cdef Block* block
    cdef Block* smaller
    enough[0] = False
    tidy(shelf.rack)
    block = index_best_fit(shelf, wanted)
    if block != NULL and is_plain(block) and not is_split(block):
        enough[0] = segment_release(engine, block, request.context, &request.failure)
        return enough[0]
    block = index_prev(shelf, block) if block != NULL else index_below(shelf, wanted)
    while block != NULL and released < wanted and block.size >= engine.tuning.max_split:
        smaller = index_prev(shelf, block)
        size = block.size
        if is_plain(block) and not is_split(block):
            if not segment_release(engine, block, request.context, &request.failure):
                return False
            released += size
        block = smaller
    enough[0] = released >= wanted
    return True


# --- the chain ---------------------------------------------------------------------------------------------

cdef bint run_callbacks(Engine* engine) noexcept nogil:
    cdef FreeMemoryCallback* callback = engine.callbacks
    cdef bint freed = False
    while callback != NULL:
        freed |= callback.run(callback.self)
        callback = callback.next
    return freed


cdef Block* policy_miss(Engine* engine, Request* request) noexcept nogil:
    """Steps 2 to 8: a block off its shelf, or NULL with the reason in request.failure."""
    cdef Pool* pool = request.shelf.rack.pool
    cdef Block* block
    # Whatever is released or let go on the way, the pool that is asking must still be there afterwards.
    pool.asking += 1
    block = find_elsewhere(engine, request)
    pool.asking -= 1
    return block


cdef Block* find_elsewhere(Engine* engine, Request* request) noexcept nogil:
    cdef Block* block
    cdef bint enough
    request.segment = segment_size(&engine.tuning, request.rounded)
    if engine.callbacks != NULL and run_callbacks(engine):
        finish_late_frees(engine)
        block = policy_hit(engine, request)
        if block != NULL:
            return block
    if collects_garbage(engine) and not collect_garbage(engine, request):
        return NULL
    block = grow(engine, request, False)
    if block != NULL or not is_worth_another_try(request):
        return block
    if engine.lender_count > 0 and request.shelf.rack.pool == &engine.defaults:
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    if engine.tuning.max_split != ~(<bytes_t> 0):
        if not release_oversize(engine, request, &enough):
            return NULL
        if enough:
            block = grow(engine, request, False)
            if block != NULL or not is_worth_another_try(request):
                return block
    if engine.routes == NULL:
        if not release_everything(engine, request.context, &request.failure):
            return NULL
        block = grow(engine, request, True)
        if block != NULL or not is_worth_another_try(request):
            return block
    note_out_of_memory(engine, request)
    return NULL


cdef void note_out_of_memory(Engine* engine, Request* request) noexcept nogil:
    """Step 8: gather the facts, as they are after the last release."""
    cdef Failure* failure = &request.failure
    cdef Pool* pool = request.shelf.rack.pool
    note_device_memory(engine, failure)
    trace_report(&engine.trace, ACTION_OOM, failure.device_free, request.rounded, request.stream,
                 pool.first, pool.second, request.context)
    engine.stats.ooms += 1
    failure.reason = FAILED_OUT_OF_MEMORY
    failure.requested = request.size
    failure.rounded = request.rounded
    failure.segment = request.segment
    failure.stream = request.stream
    failure.limited = engine.limited
    failure.limit = engine.limit
    failure.allocated = <bytes_t> tally_now(&engine.stats.allocated_bytes)
    failure.reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
    failure.private_free = 0
    pool = engine.first_pool
    while pool != NULL:
        tidy(&pool.small)
        tidy(&pool.large)
        failure.private_free += pool.small.free_bytes + pool.large.free_bytes
        pool = pool.next
    failure.largest_free = largest_free_block(engine)


cdef bytes_t largest_of_rack(Rack* rack) noexcept nogil:
    cdef Shelf* shelf = rack.shelves
    cdef bytes_t largest = 0
    cdef Block* block
    tidy(rack)
    while shelf != NULL:
        block = index_largest(shelf)
        if block != NULL and block.size > largest:
            largest = block.size
        shelf = shelf.next
    return largest


cdef bytes_t largest_free_block(Engine* engine) noexcept nogil:
    """Over all pools and streams."""
    cdef Pool* pool = engine.first_pool
    cdef bytes_t largest = max(largest_of_rack(&engine.defaults.small), largest_of_rack(&engine.defaults.large))
    while pool != NULL:
        largest = max(largest, largest_of_rack(&pool.small), largest_of_rack(&pool.large))
        pool = pool.next
    return largest
