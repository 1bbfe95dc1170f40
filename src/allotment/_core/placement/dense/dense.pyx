from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, qsort

from allotment._core.contract.table cimport OUT_OF_MEMORY
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, count_t, device_t
from allotment._core.mechanism.address_map cimport address_reserve
from allotment._core.mechanism.block cimport note_free_completed, note_handed_out
from allotment._core.mechanism.capturing cimport is_inside_capture
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.holds cimport hold_of
from allotment._core.mechanism.limits cimport release_for_soft_limit, room_below_soft_limits, room_within_limits
from allotment._core.mechanism.reclaim cimport release_everything, release_tags, release_unused_pools
from allotment._core.mechanism.shortage cimport borrow, callbacks_freed, note_out_of_memory
from allotment._core.mechanism.streams cimport (
    drop_empty_queues, is_destroyed_stream, next_moment, queue_remove, wait_events, wait_for_everything,
    wait_unless_captured)
from allotment._core.model.model cimport (
    FAILED_DEVICE, NO_FAILURE, NO_LIMITER, Block, Engine, Failure, PendingEvent, Placement, Pool, Range, Request,
    FreeList,
    StreamRecord, Totals, visit_chunk_t, visit_t)
from allotment._core.placement.dense.arena cimport (
    arena_adopt, arena_clear, arena_grant, arena_make, arena_retire, arena_trim, free_ends)
from allotment._core.placement.dense.arena_check cimport check_arena
from allotment._core.placement.dense.at_hand cimport hit_at_hand, keep_at_hand, may_keep_at_hand, settle
from allotment._core.placement.dense.clocks cimport (
    clock_clear, clock_covers, clock_note, is_past, may_use_later, note_all_past, order_after_clock, see_past,
    wait_for_pending, waited_reserve)
from allotment._core.placement.dense.growth cimport grow, grow_plainly, held, left_to_get, may_wait, note_peak
from allotment._core.placement.dense.moves cimport report_moves
from allotment._core.placement.dense.structures cimport (
    TILE_FREE, TILE_USED, Arena, Clock, DenseChunk, Node, Region, Tile, View, tile_behind, tile_end, tile_of, view_end,
    whole_granules)
from allotment._core.placement.dense.tile cimport records_to_hand_out, tile_give, tile_take
from allotment._core.placement.dense.tile_index cimport (
    LARGE_TILE, first_beside, first_fit, first_of_size, next_fit, node_next)
from allotment._core.placement.dense.usage cimport count_given
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.slab cimport slab_reserve

cdef enum:
    PASSED_OVER = 64            # most tiles that a search examines before it gives up
    # With more streams, tiles that other streams freed are rarely ready without a wait, and examining each tile loads
    # the record of another stream from main memory. Examining more tiles finds hardly more.
    MANY_STREAMS = 512
    PASSED_OVER_AMONG_MANY = 16


cdef inline Arena* arena_of(const Request* request) noexcept nogil:
    return <Arena*> request.free_list.half.arena


cdef inline Arena* arena_of_block(const Block* block) noexcept nogil:
    return <Arena*> block.free_list.half.arena


# --- which bytes --------------------------------------------------------------------------------------------------

cdef inline int most_passed_over(const Engine* engine) noexcept nogil:
    return PASSED_OVER if engine.stream_count <= MANY_STREAMS else PASSED_OVER_AMONG_MANY


cdef Tile* find_equal(Arena* arena, bytes_t size, const StreamRecord* stream, address_t* address) noexcept nogil:
    """Steps 1 and 2."""
    cdef Node* node = first_of_size(arena, size)
    cdef int most = most_passed_over(arena.engine)
    cdef int looked_at = 0
    cdef Tile* tile
    while node != NULL and node.rank == size and looked_at < most:
        if clock_covers(arena.engine, &node.tile.clock, stream):
            address[0] = node.tile.block.address
            return node.tile
        node = node_next(node)
        looked_at += 1
    node = first_beside(arena, size)
    looked_at = 0
    while node != NULL and node.rank == size and looked_at < most:
        tile = node.tile
        if tile.block.size >= size and clock_covers(arena.engine, &tile.clock, stream):
            address[0] = tile.block.address if node.place & 1 == 0 else tile_end(tile) - size
            return tile
        node = node_next(node)
        looked_at += 1
    return NULL


cdef Tile* find_ready(Arena* arena, bytes_t size, const StreamRecord* stream, address_t* address) noexcept nogil:
    """Steps 1 to 3: return a free tile, and the address in it."""
    cdef Node* node
    cdef Tile* tile
    cdef int most = most_passed_over(arena.engine)
    cdef int looked_at = 0
    if size >= LARGE_TILE:
        tile = find_equal(arena, size, stream, address)
        if tile != NULL:
            return tile
    node = first_fit(arena.free_tiles, size)
    while node != NULL and looked_at < most:
        if clock_covers(arena.engine, &node.tile.clock, stream):
            address[0] = node.tile.block.address
            return node.tile
        node = next_fit(node, size)
        looked_at += 1
    return NULL


cdef Tile* find_after_waiting(Arena* arena, Request* request, address_t* address) noexcept nogil:
    """Step 4. NULL with a failure if the device refuses to make the stream wait."""
    cdef Node* node = first_fit(arena.free_tiles, request.rounded)
    if node == NULL or not order_after_clock(arena, request.free_list.stream, &node.tile.clock, &request.failure):
        return NULL
    address[0] = node.tile.block.address
    return node.tile


cdef Tile* find_shared(Arena* arena, Request* request, address_t* address, bint* lost) noexcept nogil:
    """Step 4, if the settings allow it. If the device refuses the wait, returns NULL without a failure.

    `lost`: a stream was destroyed.
    """
    cdef Tile* tile = NULL
    lost[0] = False
    if arena.engine.tuning.dense_share_streams and may_wait(arena, request):
        tile = find_after_waiting(arena, request, address)
        lost[0] = tile == NULL and is_destroyed_stream(&request.failure)
        request.failure.reason = NO_FAILURE
    return tile


cdef Tile* find(Arena* arena, Request* request, address_t* address, bint* lost) noexcept nogil:
    """Steps 1 to 4."""
    cdef Tile* tile = find_ready(arena, request.rounded, request.free_list.stream, address)
    lost[0] = False
    return tile if tile != NULL else find_shared(arena, request, address, lost)


cdef bint synchronize(Engine* engine, Failure* failure) noexcept nogil:
    """Wait for every stream that may still use what it freed; everything freed so far is then finished. Has an unlocked
    section.

    Does nothing inside a capture, where waiting is forbidden. If it cannot wait for the whole device, it skips streams
    in a capture, and streams that may be destroyed: their work is then not known to be finished.
    """
    cdef uint64_t moment = engine.moment        # frees during the unlocked section are not waited for
    cdef StreamRecord* stream
    cdef capture_t capture
    cdef bint inside, ok
    if not is_inside_capture(engine, 0, &inside, failure):
        return False
    see_past(engine)
    if inside or moment <= engine.past:
        return True
    if wait_for_everything(engine):
        note_all_past(engine, moment)
        see_past(engine)
        return True
    stream = engine.known_streams
    while stream != NULL:
        if not is_past(engine, stream, moment) and may_use_later(engine, stream):
            stream.users += 1
            ok = wait_unless_captured(engine, stream.handle, &capture, failure)
            stream.users -= 1
            if not ok:
                return False
            if capture == 0:
                stream.done = max(stream.done, moment)
        stream = stream.next_known
    see_past(engine)
    return True


cdef Tile* find_or_synchronize(Arena* arena, Request* request, bint searched, address_t* address) noexcept nogil:
    """Call `find`, and wait for what a destroyed stream left, which can have no event. Has an unlocked section.

    `searched`: steps 1 to 3 have just found nothing.
    """
    cdef bint lost
    cdef Tile* tile
    if searched:
        tile = find_shared(arena, request, address, &lost)
    else:
        tile = find(arena, request, address, &lost)
    if tile == NULL and lost:
        if synchronize(arena.engine, &request.failure):
            tile = find(arena, request, address, &lost)
        request.failure.reason = NO_FAILURE
    return tile


cdef Block* deliver(Arena* arena, Request* request, Tile* tile, address_t address) noexcept nogil:
    """Allocate bytes of a free tile."""
    cdef Engine* engine = arena.engine
    if not (slab_reserve(&arena.tiles, records_to_hand_out(tile, address, request.rounded))
            and address_reserve(engine, 1)):
        host_memory_failed(&request.failure)
        return NULL
    tile = tile_take(arena, tile, address, request.rounded)
    tile.block.free_list = request.free_list
    if engine.trace.on:
        report_moves(arena, tile, False, request.context)
    note_handed_out(engine, &tile.block, request.size, request.context)
    note_peak(engine)
    return &tile.block


cdef Block* hit(Engine* engine, Request* request) noexcept nogil:
    cdef Arena* arena = arena_of(request)
    cdef address_t address
    cdef Tile* tile
    settle(arena)
    tile = find_ready(arena, request.rounded, request.free_list.stream, &address)
    return deliver(arena, request, tile, address) if tile != NULL else NULL


# --- memory that waits for other streams ----------------------------------------------------------------------------

cdef struct Waiting:
    Block** blocks              # blocks of one arena that wait for events, in order of freeing
    size_t count, room


cdef int freed_first(const void* a, const void* b) noexcept nogil:
    cdef const Block* left = (<const Block**> a)[0]
    cdef const Block* right = (<const Block**> b)[0]
    return -1 if left.order < right.order else 1


cdef bint list_waiting(Arena* arena, Waiting* waiting) noexcept nogil:
    """List the blocks of an arena that wait for events; count them per stream in the streams' `waiting`."""
    cdef StreamRecord* stream = arena.engine.first_waiting
    cdef PendingEvent* pending
    cdef Block* block
    cdef size_t i
    cdef bint ok = True
    waiting.blocks = NULL
    waiting.count = waiting.room = 0
    while stream != NULL and ok:
        pending = stream.first
        while pending != NULL and ok:
            block = pending.block
            # The first event found stands for its block, whose events have adjacent moments. Waiting for streams does
            # not free a block that another process has open.
            if (not block.releasable and block.free_list.half.arena == <void*> arena
                    and hold_of(arena.engine, block) == NULL):
                ok = make_room(<void**> &waiting.blocks, &waiting.room, waiting.count, sizeof(Block*))
                if ok:
                    block.releasable = True
                    block.order = pending.moment
                    waiting.blocks[waiting.count] = block
                    waiting.count += 1
                    block.free_list.stream.waiting = 0
            pending = pending.next
        stream = stream.next_waiting
    for i in range(waiting.count):
        waiting.blocks[i].releasable = False
        waiting.blocks[i].free_list.stream.waiting += 1
    if waiting.count > 1:
        qsort(waiting.blocks, waiting.count, sizeof(Block*), &freed_first)
    return ok


cdef bint take_waiting(Arena* arena, Block* block, Request* request) noexcept nogil:
    """Make the request's stream wait for a block's events, and free the block. False if the device refuses."""
    cdef Engine* engine = arena.engine
    cdef StreamRecord* mine = request.free_list.stream
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    cdef PendingEvent* following
    cdef Clock clock
    if not waited_reserve(mine):
        return False
    while stream != NULL:
        pending = stream.first
        while pending != NULL:
            if pending.block == block and not wait_for_pending(engine, mine, stream, pending):
                return False
            pending = pending.next
        stream = stream.next_waiting
    clock_clear(&clock)
    stream = engine.first_waiting
    while stream != NULL:
        pending = stream.first
        while pending != NULL:
            following = pending.next
            if pending.block == block:
                clock_note(&clock, stream, pending.moment)
                queue_remove(engine, stream, pending)
                block.event_count -= 1
            pending = following
        stream = stream.next_waiting
    drop_empty_queues(engine)
    arena.counts.wait_reuses += 1
    free_to_arena(engine, block, request.context, &clock)
    return True


cdef Tile* find_waiting(Arena* arena, Request* request, count_t kept, address_t* address) noexcept nogil:
    """Step 5; leaves the newest `kept` blocks of each stream alone, so that double buffering keeps its overlap."""
    cdef Waiting waiting
    cdef Tile* tile = NULL
    cdef StreamRecord* stream
    cdef size_t i
    cdef bint ok, lost
    if arena.engine.first_waiting == NULL:
        return NULL
    ok = list_waiting(arena, &waiting)
    for i in range(waiting.count if ok else 0):
        stream = waiting.blocks[i].free_list.stream
        if stream.waiting > kept:
            stream.waiting -= 1
            if not take_waiting(arena, waiting.blocks[i], request):
                break
            tile = find(arena, request, address, &lost)
            if tile != NULL:
                break
    free(waiting.blocks)
    return tile


# --- growing --------------------------------------------------------------------------------------------------------

cdef Tile* find_grown(Arena* arena, Region* region, Request* request, address_t* address) noexcept nogil:
    """Return a place for the request in an arena that has grown by enough."""
    cdef Tile* tile = find_ready(arena, request.rounded, request.free_list.stream, address)
    if tile == NULL and not may_wait(arena, request):
        tile = region.last
        address[0] = tile.block.address
    elif tile == NULL:
        tile = find_after_waiting(arena, request, address)
    return tile


cdef Tile* grow_and_find(Arena* arena, Request* request, bint last, address_t* address) noexcept nogil:
    """Has an unlocked section if a destroyed stream has to be waited for."""
    cdef Region* region = grow(arena, request, last)
    cdef Tile* tile = find_grown(arena, region, request, address) if region != NULL else NULL
    if region == NULL or tile != NULL or request.failure.reason != FAILED_DEVICE:
        return tile
    if is_destroyed_stream(&request.failure):
        if not synchronize(arena.engine, &request.failure):
            return NULL
        tile = find_ready(arena, request.rounded, request.free_list.stream, address)
        if tile != NULL:
            return tile
    # Waiting cannot provide the memory, or another thread has it by now.
    request.failure.reason = NO_FAILURE
    region = grow_plainly(arena, request, left_to_get(arena))
    if region == NULL:
        return NULL
    tile = find_ready(arena, request.rounded, request.free_list.stream, address)
    if tile == NULL:
        tile = region.last
        address[0] = tile.block.address
    return tile


# --- the steps ------------------------------------------------------------------------------------------------------

cdef inline bint is_refused(const Request* request) noexcept nogil:
    return request.failure.reason == FAILED_DEVICE and request.failure.status == OUT_OF_MEMORY


cdef inline Arena* arena_of_pool(const Pool* pool) noexcept nogil:
    return <Arena*> pool.large.arena


cdef inline bint can_give(const Arena* arena, const Pool* pool) noexcept nogil:
    """Whether a private pool without users has memory that an arena could take over."""
    return (pool.freeable and pool.asking == 0 and pool.placement == arena.pool.placement
            and arena_of_pool(pool).chunk_count > 0)


cdef bint adopt_unused_pools(Arena* arena, Request* request) noexcept nogil:
    """Take over the free memory of pools without users, with its addresses. Has an unlocked section."""
    cdef Engine* engine = arena.engine
    cdef Pool* pool = engine.first_pool
    while pool != NULL and not can_give(arena, pool):
        pool = pool.next
    if pool == NULL:
        return True
    if not synchronize(engine, &request.failure):
        return False
    pool = engine.first_pool if arena.region_count > 0 else NULL
    while pool != NULL:
        if can_give(arena, pool) and not arena_adopt(arena, arena_of_pool(pool), request.context, &request.failure):
            return False
        pool = pool.next
    return True


cdef bint collect_garbage(Arena* arena, Request* request) noexcept nogil:
    """Release the memory unused for longest, as far as the arena holds more than the settings allow."""
    cdef Engine* engine = arena.engine
    cdef bytes_t most = <bytes_t> (engine.tuning.gc_threshold * <double> engine.limit)
    cdef bytes_t over = held(engine) - most if held(engine) > most else 0
    if not engine.limited or engine.tuning.gc_threshold <= 0 or over == 0 or not may_wait(arena, request):
        return True
    return arena_trim(arena, arena.reserved - min(over, arena.reserved), request.context, &request.failure)


cdef Tile* find_when_refused(Arena* arena, Request* request, address_t* address) noexcept nogil:
    """Step 8, except for the lender."""
    cdef Engine* engine = arena.engine
    cdef Tile* tile
    if may_wait(arena, request):
        if engine.tuning.dense_wait_reuse >= 0:
            tile = find_waiting(arena, request, 0, address)
            if tile != NULL:
                return tile
        request.failure.reason = NO_FAILURE
        if not wait_events(engine, NULL, request.context, &request.failure):
            return NULL
        tile = find_or_synchronize(arena, request, False, address)
        if tile != NULL:
            return tile
        if not (adopt_unused_pools(arena, request)
                and release_unused_pools(engine, request.context, &request.failure)):
            return NULL
        tile = find_or_synchronize(arena, request, False, address)
        if tile != NULL:
            return tile
        tile = grow_and_find(arena, request, True, address)
        if tile != NULL or not is_refused(request):
            return tile
        engine.stats.alloc_retries += 1
        request.failure.reason = NO_FAILURE
        if not synchronize(engine, &request.failure):
            return NULL
        tile = find_ready(arena, request.rounded, request.free_list.stream, address)
        if tile != NULL:
            return tile
        if not (arena_trim(arena, 0, request.context, &request.failure)
                and release_tags(engine, 0, request.context, &request.failure)):
            return NULL
    elif arena.is_private and not request.capturing:
        # A private pool cannot use what the default pool has cached, but the device can use it after a release.
        engine.stats.alloc_retries += 1
        request.failure.reason = NO_FAILURE
        if not release_everything(engine, False, request.context, &request.failure):
            return NULL
        tile = find_ready(arena, request.rounded, request.free_list.stream, address)
        if tile != NULL:
            return tile
    return grow_and_find(arena, request, True, address)


cdef Tile* find_elsewhere(Arena* arena, Request* request, address_t* address) noexcept nogil:
    """Steps 4 to 8, after `hit` has found nothing; the search in lent memory may have changed something since."""
    cdef Engine* engine = arena.engine
    cdef Tile* tile = find_or_synchronize(arena, request, engine.lent_count == 0, address)
    if tile == NULL and may_wait(arena, request) and engine.tuning.dense_wait_reuse >= 0:
        tile = find_waiting(arena, request, engine.tuning.dense_wait_reuse, address)
    if tile == NULL and engine.callbacks != NULL and callbacks_freed(engine):
        tile = find_or_synchronize(arena, request, False, address)
    if tile != NULL or not collect_garbage(arena, request):
        return tile
    if engine.limit_count > 0 and may_wait(arena, request) and (
            request.segment > room_below_soft_limits(engine, arena.pool)):
        if not synchronize(engine, &request.failure):
            return NULL
        tile = find_ready(arena, request.rounded, request.free_list.stream, address)
        if tile != NULL or not release_for_soft_limit(engine, request, request.segment):
            return tile
    tile = grow_and_find(arena, request, False, address)
    if tile == NULL and is_refused(request):
        tile = find_when_refused(arena, request, address)
    return tile


cdef Block* miss(Engine* engine, Request* request) noexcept nogil:
    cdef Arena* arena = arena_of(request)
    cdef Pool* pool = arena.pool
    cdef address_t address
    cdef Tile* tile
    cdef Block* block = NULL
    cdef Failure refusal
    request.segment = whole_granules(request.rounded)
    if engine.lent_count > 0 and pool == &engine.defaults:
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request, True)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
    # Keeps the requesting pool alive, whatever else is released on the way.
    pool.asking += 1
    settle(arena)
    tile = find_elsewhere(arena, request, &address)
    pool.asking -= 1
    if tile != NULL:
        return deliver(arena, request, tile, address)
    if not is_refused(request):
        return NULL
    if engine.lender_count > 0 and pool == &engine.defaults:
        refusal = request.failure
        request.failure.reason = NO_FAILURE
        block = borrow(engine, request, False)
        if block != NULL or request.failure.reason != NO_FAILURE:
            return block
        request.failure = refusal
    if request.segment <= room_within_limits(engine, pool, &request.failure):
        request.failure.limiter = NO_LIMITER
    note_out_of_memory(engine, request)
    return NULL


cdef Block* lend(Engine* engine, Request* request) noexcept nogil:
    return hit(engine, request)


# --- taking back ----------------------------------------------------------------------------------------------------

cdef inline void free_to_arena(Engine* engine, Block* block, uint32_t context, Clock* clock) noexcept nogil:
    """Free a block; `clock` holds the moments of streams other than its own."""
    cdef Arena* arena = arena_of_block(block)
    cdef StreamRecord* stream = block.free_list.stream
    note_free_completed(engine, block, context)
    if engine.trace.on:
        report_moves(arena, tile_of(block), True, context)
    if tile_of(block).keeps_clock:
        clock[0] = tile_of(block).clock
    else:
        clock_note(clock, stream, next_moment(engine, stream))
    count_given(arena, tile_of(block), clock)
    tile_give(arena, tile_of(block), clock)


cdef void complete_free(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    cdef Arena* arena = arena_of_block(block)
    cdef Clock clock
    settle(arena)
    if may_keep_at_hand(arena, block):
        keep_at_hand(engine, arena, block)
        return
    clock_clear(&clock)
    free_to_arena(engine, block, context, &clock)


cdef bint reserve(Engine* engine, Pool* pool, size_t count) noexcept nogil:
    return slab_reserve(&arena_of_pool(pool).tiles, 2 * count)


cdef Block* take_front(
        Engine* engine, Block* block, FreeList* free_list, bytes_t size, uint32_t context) noexcept nogil:
    """pre: free, and of a private pool, so there are no other views"""
    cdef Clock clock = tile_of(block).clock
    cdef Tile* tile = tile_take(<Arena*> block.free_list.half.arena, tile_of(block), block.address, size)
    tile.clock = clock
    tile.keeps_clock = free_list == NULL
    if free_list != NULL:
        tile.block.free_list = free_list
    note_handed_out(engine, &tile.block, size, context)
    return &tile.block


# --- the arena as a whole ---------------------------------------------------------------------------------------------

cdef void* create(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    cdef Arena* arena = arena_make(engine, pool, pool != &engine.defaults)
    if arena == NULL:
        host_memory_failed(failure)
    return arena


cdef void destroy(Engine* engine, Pool* pool) noexcept nogil:
    arena_clear(<Arena*> pool.large.arena)


cdef bint release(Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    cdef Arena* arena = <Arena*> pool.large.arena
    if arena.chunk_count == 0 and arena.leftover_count == 0:
        return True
    if not synchronize(engine, failure):
        return False
    settle(arena)
    return arena_trim(arena, keep, context, failure)


cdef bint retire(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    return arena_retire(<Arena*> pool.large.arena, failure)


cdef bint grant(Engine* engine, Pool* pool, device_t device, Failure* failure) noexcept nogil:
    return arena_grant(<Arena*> pool.large.arena, device, failure)


cdef bytes_t largest_free(Engine* engine, Pool* pool) noexcept nogil:
    cdef Arena* arena = <Arena*> pool.large.arena
    settle(arena)
    return arena.free_tiles.longest if arena.free_tiles != NULL else 0


cdef bytes_t free_bytes(Engine* engine, Pool* pool) noexcept nogil:
    cdef Arena* arena = <Arena*> pool.large.arena
    return arena.reserved - arena.active


cdef bytes_t joinable(Engine* engine, Pool* pool) noexcept nogil:
    """All wholly free chunks plus the longest free tail and head; or one free tile, if that is larger."""
    cdef Arena* arena = arena_of_pool(pool)
    cdef DenseChunk* chunk = arena.first_chunk
    cdef bytes_t whole = 0
    cdef bytes_t longest_head = 0
    cdef bytes_t longest_tail = 0
    cdef bytes_t head, tail
    settle(arena)
    if arena.is_private or engine.tuning.dense_views < 2:
        return largest_free(engine, pool)
    while chunk != NULL:
        if chunk.live == 0:
            whole += chunk.size
        else:
            free_ends(arena, chunk, &head, &tail)
            longest_head = max(longest_head, head)
            longest_tail = max(longest_tail, tail)
        chunk = chunk.next
    return max(longest_tail + whole + longest_head, largest_free(engine, pool))


cdef Range* ranges(Engine* engine, Pool* pool) noexcept nogil:
    cdef Arena* arena = arena_of_pool(pool)
    settle(arena)
    return &arena.regions[0].range if arena.region_count > 0 else NULL


cdef bint walk(Engine* engine, Pool* pool, visit_t visit, void* self) noexcept nogil:
    """Visit every tile in use where it is used, and every free byte at its home."""
    cdef Arena* arena = <Arena*> pool.large.arena
    cdef Tile* tile
    cdef View* view
    cdef address_t at = 0       # end of what was visited last
    cdef address_t low, high
    cdef size_t i
    settle(arena)
    for i in range(arena.region_count):
        tile = <Tile*> arena.regions[i].range.head
        while tile != NULL:
            if tile.state == TILE_USED:
                if not visit(self, &tile.block, tile.block.address, tile.block.size, at != tile.block.address):
                    return False
                at = tile_end(tile)
            view = tile.view if tile.state == TILE_FREE else NULL
            low = tile.block.address
            while view != NULL and view.address < tile_end(tile):
                high = min(view_end(view), tile_end(tile))
                if view.chunk.home != view:
                    low = high
                # Free bytes of adjacent homes are visited as one.
                if view.behind == NULL or view.behind.chunk.home != view.behind or high == tile_end(tile):
                    if high > low:
                        if not visit(self, &tile.block, low, high - low, at != low):
                            return False
                        at = high
                    low = high
                view = view.behind
            tile = tile_behind(tile)
    return True


cdef bint chunks(Engine* engine, Block* block, visit_chunk_t visit, void* self) noexcept nogil:
    cdef View* view = tile_of(block).view
    while view != NULL and view.address < tile_end(tile_of(block)):
        if not visit(self, view.chunk.handle, view.chunk.size, view.address):
            return False
        view = view.behind
    return True


cdef int check(Engine* engine, Pool* pool, Totals* totals) except -1:
    settle(arena_of_pool(pool))
    return check_arena(arena_of_pool(pool), totals)


cdef Placement table = Placement(
    name=b"dense", needs_virtual=True, create=create, destroy=destroy, hit=hit, hit_last_freed=hit_at_hand, miss=miss,
    lend=lend, reserve=reserve, take_front=take_front, complete_free=complete_free, release=release, retire=retire,
    grant=grant, largest_free=largest_free, free_bytes=free_bytes, joinable=joinable, ranges=ranges, walk=walk,
    chunks=chunks, check=check)


cdef const Placement* dense_placement() noexcept nogil:
    return &table


cdef void dense_note_streams(Engine* engine, bint last) noexcept nogil:
    cdef Arena* arena
    if engine.defaults.placement == &table:
        arena = <Arena*> engine.defaults.large.arena
        if last:
            arena.streams_last = True
        else:
            arena.streams_end = True


cdef dict dense_figures(Engine* engine):
    cdef Arena* arena
    if engine.defaults.placement != &table:
        return None
    arena = <Arena*> engine.defaults.large.arena
    return {
        "chunks": arena.chunk_count,
        "views": {"current": arena.counts.views, "peak": arena.counts.views_most},
        "regions": arena.region_count,
        "stitches": arena.counts.stitches,
        "forced_growths": arena.counts.forced_growths,
        "waits": arena.counts.waits,
        "wait_reuses": arena.counts.wait_reuses,
        "views_dropped": arena.counts.views_dropped,
        "gaps_filled": arena.counts.gaps_filled,
        "adopted": arena.counts.adopted,
        "driver_calls": {
            "reserve": arena.counts.reserve,
            "create": arena.counts.create,
            "map": arena.counts.map,
            "access": arena.counts.access,
            "unmap": arena.counts.unmap,
            "release": arena.counts.release,
        },
    }


cdef list dense_views(Engine* engine):
    cdef Arena* arena = <Arena*> engine.defaults.large.arena
    cdef View* view
    cdef size_t i
    shown = []
    if engine.defaults.placement != &table:
        return None
    for i in range(arena.region_count):
        view = arena.regions[i].first_view
        while view != NULL:
            shown.append({"chunk": view.chunk.number, "size": view.chunk.size, "region": arena.regions[i].number,
                          "address": view.address})
            view = view.behind
    return shown
