from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free

from allotment._core.contract.table cimport OUT_OF_MEMORY
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.mechanism.address_map cimport address_reserve, has_room_for_one
from allotment._core.mechanism.block cimport is_plain, is_plain_of, is_split
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.limits cimport release_for_soft_limit, room_below_soft_limits, room_within_limits
from allotment._core.mechanism.pool cimport free_list_for, pause_failed
from allotment._core.mechanism.reclaim cimport release_everything
from allotment._core.mechanism.segment cimport segment_obtain
from allotment._core.mechanism.shortage cimport borrow, callbacks_freed, note_out_of_memory, note_rejection, rejects
from allotment._core.mechanism.streams cimport wait_events
from allotment._core.model.model cimport (
    AWAKE, FAILED_DEVICE, FAILED_PAUSED, LIMIT_OF_ALLOCATOR, NO_FAILURE, NO_LIMITER, Block, Engine, Placement, Pool,
    Half, Request, FreeList)
from allotment._core.model.sizes cimport whole_blocks
from allotment._core.placement.pytorch.check cimport check_free_lists
from allotment._core.placement.pytorch.classes cimport half_for_size, segment_size
from allotment._core.placement.pytorch.expandable cimport grow_in_place, growth_in_place
from allotment._core.placement.pytorch.free_index cimport (
    index_below, index_best_fit, index_largest, index_next, index_prev)
from allotment._core.placement.pytorch.policy cimport (
    collects_garbage, deliver, deliver_ordinary, grows_in_place, hit_free_list, search)
from allotment._core.placement.pytorch.release cimport (
    BlockList, drop_ranges, list_append, list_sort, release_segments, release_free_lists, segment_release)
from allotment._core.placement.pytorch.free_lists cimport (
    best_fit, free_to_list, hand_out, add_to_free_list, take_off_free_list, flush_last_freed, remove_from_free_list)
from allotment._core.records.stats cimport tally_now
from allotment._core.tools.slab cimport slab_reserve


# --- which block: the ordinary case ------------------------------------------------------------------------------

cdef Block* hit_on_free_list(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil:
    cdef bytes_t rounded = whole_blocks(size)
    cdef Half* half = half_for_size(&engine.defaults, rounded)
    cdef FreeList* free_list = half.recent
    cdef Block* block
    if free_list == NULL or free_list.stream.handle != stream:
        return NULL
    block = best_fit(free_list, rounded)
    if block == NULL or block.size >= engine.tuning.max_split or not is_plain_of(half, block):
        return NULL
    if engine.block_slab.spare_count == 0 or not has_room_for_one(engine):
        return NULL
    if block != half.last_freed:
        take_off_free_list(block)
    return deliver_ordinary(engine, half, half.size_class, block, rounded, size, context)


# --- which block: the expandable cases --------------------------------------------------------------------------

cdef inline bytes_t size_with_room_to_grow(const Block* block) noexcept nogil:
    if block.next != NULL and not block.next.mapped:
        return block.size + block.next.size
    return block.size


cdef Block* prefer_closed_fit(FreeList* free_list, Block* block) noexcept nogil:
    """Move from a block at the growing edge to one of the next fits, if that costs no room to grow."""
    cdef Block* following
    flush_last_freed(free_list.half)
    while not is_plain(block):
        following = index_next(free_list, block)
        if following == NULL or size_with_room_to_grow(following) >= size_with_room_to_grow(block):
            break
        block = following
    return block


cdef Block* skip_expandable(FreeList* free_list, Block* block) noexcept nogil:
    flush_last_freed(free_list.half)
    while block != NULL and not is_plain(block):
        block = index_next(free_list, block)
    return block


# --- when to grow ------------------------------------------------------------------------------------------

cdef Block* grow(Engine* engine, Request* request, bint last_try) noexcept nogil:
    """Allocate new memory within the limit; NULL with the reason in request.failure (out of memory: try more)."""
    cdef Pool* pool = request.free_list.half.pool
    cdef Block* block
    request.failure.reason = NO_FAILURE
    if last_try:
        engine.stats.alloc_retries += 1
    if engine.limited and <bytes_t> tally_now(&engine.stats.reserved_bytes) + request.segment > engine.limit:
        request.failure.limiter = LIMIT_OF_ALLOCATOR
        device_failed(&request.failure, OUT_OF_MEMORY, b"limit")
        return NULL
    if engine.limit_count > 0 and growth(engine, request) > room_within_limits(engine, pool, &request.failure):
        device_failed(&request.failure, OUT_OF_MEMORY, b"limit")
        return NULL
    request.failure.limiter = NO_LIMITER
    if rejects(engine, request.segment):
        note_rejection(engine, request)
        return NULL
    if not request.expandable:
        return segment_obtain(engine, request)
    block = grow_in_place(engine, request)
    if block != NULL:
        pool.malloc_count += 1
    return block


cdef bytes_t growth(Engine* engine, Request* request) noexcept nogil:
    """Return how much a request served with new memory would add to its pool."""
    return growth_in_place(engine, request) if request.expandable else request.segment


cdef bint make_room_below_soft_limit(Engine* engine, Request* request, Block** block) noexcept nogil:
    """Release cached memory that does not fit below the soft limit. `block`: one that has become free meanwhile.

    The release may include pages that the request would have grown around. The request then has to grow by more than
    before. So the function recomputes the growth until it fits, or until nothing more is released.
    """
    cdef Pool* pool = request.free_list.half.pool
    cdef bytes_t more = growth(engine, request)
    cdef bytes_t before
    request.failure.reason = NO_FAILURE
    if request.capturing or more <= room_below_soft_limits(engine, pool):
        return True
    if not wait_events(engine, NULL, request.context, &request.failure):
        return False
    block[0] = search(engine, request.free_list, request.rounded, request.expandable)
    while block[0] == NULL and more > room_below_soft_limits(engine, pool):
        before = <bytes_t> tally_now(&engine.stats.reserved_bytes)
        if not release_for_soft_limit(engine, request, more):
            return False
        if <bytes_t> tally_now(&engine.stats.reserved_bytes) >= before:
            break
        more = growth(engine, request)
    return True


cdef inline bint is_worth_another_try(const Request* request) noexcept nogil:
    return request.failure.reason == FAILED_DEVICE and request.failure.status == OUT_OF_MEMORY


# --- what to release ---------------------------------------------------------------------------------------

cdef bint collect_garbage(Engine* engine, Request* request) noexcept nogil:
    """Step 3: release unused large segments, older half first, until reserved memory is below the threshold.

    The list of releasable blocks is in order of age, so the blocks of at least average age are its front.
    """
    cdef Half* half = &engine.defaults.large
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
    flush_last_freed(half)
    while ok and reclaimed < reserved - threshold and half.releasable_count > 0:
        average_age = (<double> (<uint64_t> half.releasable_count * half.search_count - half.releasable_freed_sum)
                       / <double> half.releasable_count)
        list.count = 0
        block = half.oldest
        while block != NULL and <double> (half.search_count - block.range.freed_at) >= average_age:
            if not list_append(&list, block):
                break
            reclaimed += block.size
            block = block.newer
        if list.count == 0:
            break
        list_sort(&list)
        ok = release_segments(engine, &list, 0, request.context, &request.failure)
    free(list.blocks)
    return ok


cdef bint release_oversize(Engine* engine, Request* request, bint* enough) noexcept nogil:
    """Step 6: release one oversize block that is large enough, or several that are so together."""
    cdef FreeList* free_list = request.free_list
    cdef bytes_t wanted = max(request.rounded, engine.tuning.max_split)
    cdef bytes_t released = 0
    cdef BlockList list
    cdef Block* block
    cdef bint ok = True
    enough[0] = False
    flush_last_freed(free_list.half)
    block = index_best_fit(free_list, wanted)
    if block != NULL and is_plain(block) and not is_split(block):
        enough[0] = segment_release(engine, block, request.context, &request.failure)
        return enough[0]
    list.blocks = NULL
    list.count = list.room = 0
    block = index_prev(free_list, block) if block != NULL else index_below(free_list, wanted)
    while ok and block != NULL and released < wanted and block.size >= engine.tuning.max_split:
        if is_plain(block) and not is_split(block):
            released += block.size
            ok = list_append(&list, block)
        block = index_prev(free_list, block)
    if not ok:
        host_memory_failed(&request.failure)
    ok = ok and release_segments(engine, &list, 0, request.context, &request.failure)
    free(list.blocks)
    enough[0] = ok and released >= wanted
    return ok


# --- the chain ---------------------------------------------------------------------------------------------

cdef Block* miss_free_list(Engine* engine, Request* request) noexcept nogil:
    """Steps 2 to 8: allocate a block, or NULL with the reason in request.failure."""
    cdef Pool* pool = request.free_list.half.pool
    cdef Block* block
    # Keeps the requesting pool alive, whatever else is released on the way.
    pool.asking += 1
    block = find_elsewhere(engine, request)
    pool.asking -= 1
    if block == NULL or block.allocated:
        return block
    if pool.sleep != AWAKE:         # paused meanwhile
        add_to_free_list(block)
        pause_failed(&request.failure, FAILED_PAUSED, pool)
        return NULL
    return deliver(engine, request, block)


cdef Block* find_elsewhere(Engine* engine, Request* request) noexcept nogil:
    """Return a block off its free list, or one that a lender has already allocated."""
    cdef Block* block
    cdef bint enough
    request.segment = segment_size(&engine.tuning, request.rounded)
    if engine.callbacks != NULL and callbacks_freed(engine):
        block = search(engine, request.free_list, request.rounded, request.expandable)
        if block != NULL:
            return block
    if engine.lent_count > 0 and request.free_list.half.pool == &engine.defaults:
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request, True)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    if collects_garbage(engine) and not collect_garbage(engine, request):
        return NULL
    if engine.limit_count > 0:
        block = NULL
        if not make_room_below_soft_limit(engine, request, &block) or block != NULL:
            return block
    block = grow(engine, request, False)
    if block != NULL or not is_worth_another_try(request):
        return block
    if engine.lender_count > 0 and request.free_list.half.pool == &engine.defaults:
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request, False)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    if engine.tuning.max_split != ~(<bytes_t> 0):
        if not release_oversize(engine, request, &enough):
            return NULL
        if enough:
            block = grow(engine, request, False)
            if block != NULL or not is_worth_another_try(request):
                return block
    if not request.capturing:
        if not release_everything(engine, False, request.context, &request.failure):
            return NULL
        block = grow(engine, request, True)
        if block != NULL or not is_worth_another_try(request):
            return block
    note_out_of_memory(engine, request)
    return NULL


cdef bytes_t largest_of_half(Half* half) noexcept nogil:
    cdef FreeList* free_list = half.free_lists
    cdef bytes_t largest = 0
    cdef Block* block
    flush_last_freed(half)
    while free_list != NULL:
        block = index_largest(free_list)
        if block != NULL and block.size > largest:
            largest = block.size
        free_list = free_list.next
    return largest


cdef bytes_t largest_on_free_lists(Engine* engine, Pool* pool) noexcept nogil:
    return max(largest_of_half(&pool.small), largest_of_half(&pool.large))


cdef bytes_t free_bytes_listed(Engine* engine, Pool* pool) noexcept nogil:
    flush_last_freed(&pool.small)
    flush_last_freed(&pool.large)
    return pool.small.free_bytes + pool.large.free_bytes


# --- at an address ------------------------------------------------------------------------------------------

cdef Block* free_block_around(FreeList* free_list, address_t address, bytes_t size) noexcept nogil:
    """Return the free block of a free list that contains [address, address + size); does not remove it.

    Free blocks are kept by size, so this visits all that are large enough.
    """
    cdef Block* block
    flush_last_freed(free_list.half)
    block = index_best_fit(free_list, size)
    while block != NULL and not (block.address <= address and address + size <= block.address + block.size):
        block = index_next(free_list, block)
    return block


cdef Block* hit_address(Engine* engine, Request* request, address_t address, Block** front) noexcept nogil:
    """Allocate a block at exactly this address; NULL with NO_FAILURE if it is not free.

    The part before it in the same free block is allocated too; the caller frees it at once.

        free       |------------------------- A --------------------------|
        allocate   |---- front ----|------------------ A -----------------|
        serve      |---- front ----|---- request ----|-------- A ---------|
        free       |---- free -----|---- request ----|------- free -------|
    """
    cdef Block* block = free_block_around(request.free_list, address, request.rounded)
    front[0] = NULL
    if block == NULL:
        return NULL
    if not (slab_reserve(&engine.block_slab, 2) and address_reserve(engine, 2)):
        host_memory_failed(&request.failure)
        return NULL
    request.expandable = grows_in_place(engine, request.free_list.half.pool)
    remove_from_free_list(block)
    if block.address < address:
        front[0] = hand_out(engine, block, address - block.address, address - block.address, True, request.context)
        block = front[0].next
        remove_from_free_list(block)
    return deliver(engine, request, block)


# --- for others --------------------------------------------------------------------------------------------

cdef Block* hit(Engine* engine, Request* request) noexcept nogil:
    return hit_free_list(engine, request)


cdef Block* lend(Engine* engine, Request* request) noexcept nogil:
    """Step 5, from the lender: only plain memory, split as for a request for plain memory."""
    cdef Half* half = half_for_size(request.free_list.half.pool, request.rounded)
    cdef FreeList* free_list = free_list_for(engine, half, request.free_list.stream)
    cdef bint expandable = request.expandable
    cdef Block* block
    if free_list == NULL:
        host_memory_failed(&request.failure)
        return NULL
    block = search(engine, free_list, request.rounded, False)
    if block == NULL:
        return NULL
    request.expandable = False
    block = deliver(engine, request, block)
    request.expandable = expandable
    return block


cdef Block* take_front(
        Engine* engine, Block* block, FreeList* free_list, bytes_t size, uint32_t context) noexcept nogil:
    remove_from_free_list(block)
    return hand_out(engine, block, size, size, block.size > size, context)


cdef void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    free_to_list(engine, block, context)


cdef Placement table = Placement(
    name=b"torch", needs_virtual=False, create=NULL, destroy=NULL, hit=hit, hit_last_freed=NULL, miss=miss_free_list,
    lend=lend, reserve=NULL, take_front=take_front, complete_free=complete_free, release=release_free_lists,
    retire=drop_ranges, grant=NULL, largest_free=largest_on_free_lists, free_bytes=free_bytes_listed, joinable=NULL,
    ranges=NULL, walk=NULL, chunks=NULL, check=check_free_lists)


cdef const Placement* torch_placement() noexcept nogil:
    return &table
