from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport strcmp

from allotment._core.contract.table cimport OK, OUT_OF_MEMORY
from allotment._core.contract.types cimport bytes_t, capture_t
from allotment._core.mechanism.capturing cimport capture_of
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.limits cimport room_below_soft_limits, room_within_limits
from allotment._core.model.model cimport FAILED_DEVICE, NO_FAILURE, Engine, Failure, Request
from allotment._core.placement.dense.arena cimport Piece, addresses_left, arena_extend, drop_old_views, region_make
from allotment._core.placement.dense.clocks cimport clock_covers
from allotment._core.placement.dense.growth cimport held, in_use
from allotment._core.placement.dense.plan cimport Plan, Terms, plan_cheapest, plan_clear
from allotment._core.placement.dense.structures cimport (
    TILE_FREE, Arena, DenseChunk, Node, Region, Tile, full_granules, region_of, tile_before, tile_behind,
    whole_granules)
from allotment._core.placement.dense.tile_index cimport node_from, node_next
from allotment._core.tools.arrays cimport make_room

cdef enum:
    CHUNK_MOST = 268435456
    START_CHUNKS = 64
    LOADING_GRAIN = 32          # what a program loads mostly stays, and finer chunks of it would save little
    MEBIBYTE = 1048576


cdef bint may_wait(const Arena* arena, const Request* request) noexcept nogil:
    """Whether the request's stream may wait, on the device, for another stream."""
    cdef Engine* engine = arena.engine
    cdef capture_t capture = 0
    cdef Failure failure
    if arena.is_private or request.capturing or (
            engine.table.event_record != NULL and engine.table.stream_wait == NULL):
        return False
    if request.stream == engine.calm_stream and request.stream != 0:
        return False
    return engine.impure_routes == 0 or (
        capture_of(engine, request.free_list.stream.handle, &capture, &failure) and capture == 0)


cdef bytes_t left_to_get(const Arena* arena) noexcept nogil:
    """Return the bytes that the limit and the device leave."""
    cdef Engine* engine = arena.engine
    cdef bytes_t left = 0
    cdef bytes_t total
    cdef Failure unused
    if engine.table.memory_info(engine.table.self, &left, &total) != OK:
        left = engine.total_memory
    return min(left, room_within_limits(engine, arena.pool, &unused))


cdef inline bint is_pressed(bytes_t reserved, bytes_t left) noexcept nogil:
    """Whether more than a quarter of all available memory is held: then chunks are small, without memory ahead."""
    return reserved > (reserved + left) // 4


cdef bytes_t room_for(const Arena* arena, bytes_t peak, bytes_t left) noexcept nogil:
    """Return how much an arena may grow without stitching free memory."""
    cdef bytes_t slack = arena.engine.tuning.dense_slack * peak // 1000000
    slack = max(slack, min(<bytes_t> 16 * MEBIBYTE, peak // 32))
    if arena.loading:
        slack = max(slack, peak * 6 // 100)
    if peak + slack <= held(arena.engine):
        return 0
    return full_granules(min(peak + slack - held(arena.engine), left))


cdef bytes_t chunk_size(const Arena* arena, bytes_t reserved, bytes_t left, bytes_t new, bytes_t rest) noexcept nogil:
    """Return the size of the next chunk when `rest` of `new` bytes are still to be created."""
    cdef uint64_t grain = arena.engine.tuning.dense_grain
    cdef bytes_t most, size
    if is_pressed(reserved, left):
        most = max(<bytes_t> 4 * MEBIBYTE, whole_granules((reserved + left) // 512))
    else:
        most = max(<bytes_t> 768 * MEBIBYTE, reserved, in_use(arena.engine) + rest, 2 * new) // grain
        if arena.loading and reserved < (reserved + left) // 8:
            most = max(most, reserved // LOADING_GRAIN)
        most = min(<bytes_t> CHUNK_MOST, whole_granules(most))
    size = min(rest, most)
    if 0 < rest - size < size // 4:
        size = whole_granules(rest // 2)
    return size


cdef struct Pieces:
    Piece* pieces
    size_t count, room


cdef bint add_piece(Pieces* list, DenseChunk* chunk, bytes_t size) noexcept nogil:
    if not make_room(<void**> &list.pieces, &list.room, list.count, sizeof(Piece)):
        return False
    list.pieces[list.count].chunk = chunk
    list.pieces[list.count].size = size
    list.count += 1
    return True


cdef bint add_new(Arena* arena, Pieces* list, bytes_t new, bytes_t left) noexcept nogil:
    """Add new memory, divided into chunks."""
    cdef bytes_t reserved = held(arena.engine)
    cdef bytes_t rest = new
    cdef bytes_t size
    while rest > 0:
        size = chunk_size(arena, reserved, left, new, rest)
        if not add_piece(list, NULL, size):
            return False
        reserved += size
        left -= min(left, size)
        rest -= size
    return True


cdef bint extend(Arena* arena, Region* region, Tile* gap, Pieces* list, Request* request) noexcept nogil:
    cdef bint ok = list.count == 0 or arena_extend(arena, region, gap, list.pieces, list.count, request.stream,
                                                   request.context, &request.failure)
    free(list.pieces)
    return ok


cdef bint grow_by(Arena* arena, Region* region, Tile* gap, bytes_t new, bytes_t left, Request* request) noexcept nogil:
    cdef Pieces list
    list.pieces = NULL
    list.count = list.room = 0
    if not add_new(arena, &list, new, left):
        free(list.pieces)
        return host_memory_failed(&request.failure)
    return extend(arena, region, gap, &list, request)


cdef inline bytes_t free_tail(const Region* region) noexcept nogil:
    if region.last == NULL or region.last.state != TILE_FREE:
        return 0
    return region.last.block.size


cdef inline bint refuse(Request* request) noexcept nogil:
    return device_failed(&request.failure, OUT_OF_MEMORY, b"chunk_create")


cdef Region* grow_plainly(Arena* arena, Request* request, bytes_t left) noexcept nogil:
    """Grow by new memory only, after a tail that is ready for the request, or in a region of its own."""
    cdef Region* region
    cdef bytes_t need, tail
    cdef size_t i
    for i in range(arena.region_count):
        region = arena.regions[i]
        tail = free_tail(region)
        if tail > 0 and not clock_covers(arena.engine, &region.last.clock, request.free_list.stream):
            continue
        need = whole_granules(request.rounded - min(tail, request.rounded))
        if need <= addresses_left(region):
            if need > left:
                refuse(request)
                return NULL
            return region if grow_by(arena, region, NULL, need, left, request) else NULL
    need = whole_granules(request.rounded)
    if need > left:
        refuse(request)
        return NULL
    region = region_make(arena, need, arena.region_count == 0, request.stream, &request.failure)
    if region == NULL or not grow_by(arena, region, NULL, need, left, request):
        return NULL
    return region


cdef inline bint is_stitched(const Plan* plan) noexcept nogil:
    return plan.tail_of != NULL or plan.whole_count > 0 or plan.head_of != NULL


cdef Region* carry_out(Arena* arena, const Plan* plan, bytes_t left, Request* request) noexcept nogil:
    cdef Region* region = plan.region
    cdef Pieces list
    cdef size_t i
    cdef bint ok = True
    if region == NULL:
        region = region_make(arena, plan.added, False, request.stream, &request.failure)
        if region == NULL:
            return NULL
    list.pieces = NULL
    list.count = list.room = 0
    if plan.tail_of != NULL:
        ok = add_piece(&list, plan.tail_of, plan.tail_of.size)
    for i in range(plan.whole_count):
        ok = ok and add_piece(&list, plan.whole[i], plan.whole[i].size)
    if plan.create > 0:
        ok = ok and add_new(arena, &list, plan.create, left)
    if plan.head_of != NULL:
        ok = ok and add_piece(&list, plan.head_of, plan.head_of.size)
    if not ok:
        free(list.pieces)
        host_memory_failed(&request.failure)
        return NULL
    if not extend(arena, region, NULL, &list, request):
        return NULL
    arena.counts.stitches += is_stitched(plan)
    arena.counts.forced_growths += plan.beyond > 0
    if plan.tail_of != NULL:
        drop_old_views(arena, plan.tail_of, region)
    for i in range(plan.whole_count):
        drop_old_views(arena, plan.whole[i], region)
    if plan.head_of != NULL:
        drop_old_views(arena, plan.head_of, region)
    return region


cdef void start_with(Arena* arena, Region* region, bytes_t size, Request* request) noexcept nogil:
    """Allocate a first amount in equal chunks, as far as the device and the limit allow."""
    cdef bytes_t piece = whole_granules(max(size // START_CHUNKS, <bytes_t> 1))
    cdef Pieces list
    cdef bint ok = True
    list.pieces = NULL
    list.count = list.room = 0
    size = min(whole_granules(size), full_granules(min(left_to_get(arena), addresses_left(region))))
    while size > 0 and ok:
        ok = add_piece(&list, NULL, min(size, piece))
        size -= min(size, piece)
    if not ok:
        list.count = 0
    extend(arena, region, NULL, &list, request)
    request.failure.reason = NO_FAILURE


cdef inline bytes_t free_size(const Tile* tile) noexcept nogil:
    return tile.block.size if tile != NULL and tile.state == TILE_FREE else 0


cdef Tile* cheapest_gap(Arena* arena, bytes_t size, bytes_t* need) noexcept nogil:
    """Return the gap that needs the least new memory to hold the request, together with the free memory next to the
    gap.

    Among equal gaps it returns the lowest; NULL if none exists.
    """
    cdef Node* node = node_from(arena.gaps, 0, 0)
    cdef Tile* best = NULL
    cdef Tile* gap
    cdef bytes_t before, behind, wanted
    while node != NULL:
        gap = node.tile
        before = free_size(tile_before(gap))
        behind = free_size(tile_behind(gap))
        if region_of(gap).leftovers == 0 and before < size and behind < size \
                and before + gap.block.size + behind >= size:
            wanted = min(whole_granules(size - before), gap.block.size)
            if best == NULL or wanted < need[0]:
                best = gap
                need[0] = wanted
        node = node_next(node)
    return best


cdef inline bint addresses_were_refused(const Failure* failure) noexcept nogil:
    return failure.reason == FAILED_DEVICE and strcmp(failure.operation, b"range_reserve") == 0


cdef inline bint mapping_was_refused(const Failure* failure) noexcept nogil:
    return failure.reason == FAILED_DEVICE and (
        strcmp(failure.operation, b"map") == 0 or strcmp(failure.operation, b"set_access") == 0)


cdef Region* try_plan(Arena* arena, const Terms* terms, bytes_t more, bytes_t left, Request* request,
                      bint* stitched) noexcept nogil:
    """Carry out the cheapest plan. If the plan creates memory beyond the room, it creates at least `more`."""
    cdef Region* region = NULL
    cdef Plan plan
    stitched[0] = False
    if plan_cheapest(arena, terms, &plan, &request.failure):
        if plan.price >= 0 and plan.beyond > 0 and plan.create < more and more <= left and (
                plan.region == NULL or plan.added + (more - plan.create) <= addresses_left(plan.region)):
            plan.added += more - plan.create
            plan.create = more
        if plan.price < 0 or plan.create > left:
            refuse(request)
        else:
            stitched[0] = is_stitched(&plan)
            region = carry_out(arena, &plan, left, request)
    plan_clear(&plan)
    return region


cdef Region* grow_by_plan(Arena* arena, const Terms* terms, bytes_t more, bytes_t left,
                          Request* request) noexcept nogil:
    """Grow by the cheapest plan. If the device refuses addresses, retry once with those that are left in regions; if it
    refuses a mapping, retry once without stitching.
    """
    cdef Terms fewer = terms[0]
    cdef Failure refusal
    cdef bint stitched
    cdef Region* region = try_plan(arena, terms, more, left, request, &stitched)
    if region != NULL:
        return region
    refusal = request.failure
    if addresses_were_refused(&refusal):
        fewer.new_regions = False
    elif stitched and mapping_was_refused(&refusal):
        fewer.stitches = False
    else:
        return NULL
    request.failure.reason = NO_FAILURE
    region = try_plan(arena, &fewer, more, left, request, &stitched)
    if region == NULL and not fewer.new_regions and whole_granules(request.rounded) <= left:
        request.failure = refusal       # what is short is addresses, not memory
    return region


cdef Region* grow(Arena* arena, Request* request, bint last) noexcept nogil:
    """Step 7: return the region that has grown by enough; NULL with the reason in request.failure."""
    cdef bytes_t size = request.rounded
    cdef bytes_t peak = max(arena.peak, in_use(arena.engine) + size)
    cdef bytes_t left = left_to_get(arena)
    cdef bytes_t room = room_for(arena, peak, left)
    cdef bint pressed = is_pressed(held(arena.engine), left)
    cdef bytes_t unlimited = full_granules(room_below_soft_limits(arena.engine, arena.pool))
    cdef bytes_t start, need, ahead, more
    cdef bytes_t in_gap = 0
    cdef Region* region
    cdef Tile* gap
    cdef Terms terms
    request.failure.reason = NO_FAILURE
    if not may_wait(arena, request):
        return grow_plainly(arena, request, left)
    start = min(arena.engine.tuning.dense_start, arena.engine.total_memory) if arena.numbered == 0 else 0
    if arena.main == NULL and region_make(arena, whole_granules(max(size, start)), True, request.stream,
                                          &request.failure) == NULL:
        return NULL
    region = arena.main
    if start > 0:
        start_with(arena, region, start, request)
        if free_tail(region) >= size:
            return region
        left = left_to_get(arena)
        room = room_for(arena, peak, left)
    need = whole_granules(size - min(size, free_tail(region)))
    ahead = 0
    if not pressed:
        ahead = min(whole_granules(max(<bytes_t> 16 * MEBIBYTE, held(arena.engine) // 50)), room, unlimited)
    gap = cheapest_gap(arena, size, &in_gap) if not last else NULL
    if gap != NULL and in_gap <= room and (in_gap <= need or need > addresses_left(region)):
        arena.counts.gaps_filled += 1
        region = region_of(gap)
        in_gap = max(in_gap, min(ahead, gap.block.size))
        return region if grow_by(arena, region, gap, in_gap, left, request) else NULL
    if need > addresses_left(region) and region.leftovers == 0 and whole_granules(size) <= room and not last:
        if region_make(arena, whole_granules(size), True, request.stream, &request.failure) != NULL:
            region = arena.main
            need = whole_granules(size)
        request.failure.reason = NO_FAILURE
    if need <= room and need <= addresses_left(region) and not last:
        need = max(need, min(ahead, addresses_left(region)))
        return region if grow_by(arena, region, NULL, need, left, request) else NULL
    terms.size = size
    terms.room = room
    terms.stitches = arena.engine.tuning.dense_views > 1
    terms.new_regions = True
    terms.mebibyte_us = 1e9 if last else 1000.0 if pressed else 20.0 * arena.engine.tuning.dense_grain / 24
    more = 0 if pressed or last else min(whole_granules(peak // 200), unlimited)
    return grow_by_plan(arena, &terms, more, left, request)
