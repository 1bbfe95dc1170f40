from libc.math cimport round
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport CAN_VIRTUAL, OK, OUT_OF_MEMORY, UNSUPPORTED, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, count_t, device_t, stream_t
from allotment._core.engine cimport (
    complete_finished, engine_enter, engine_leave, free_at_once_inline, request_begin, serve, serve_from_pool)
from allotment._core.mechanism.address_map cimport address_take, block_at
from allotment._core.mechanism.block cimport is_plain
from allotment._core.mechanism.captures cimport captures_clear, forget_capture, reuse_in_capture
from allotment._core.mechanism.capturing cimport is_inside_capture
from allotment._core.mechanism.failure cimport (
    address_failed, device_failed, host_memory_failed, note_device_memory, pool_failed)
from allotment._core.mechanism.frees cimport free_asking_device, is_freed_at_once
from allotment._core.mechanism.holds cimport holds_clear
from allotment._core.mechanism.limits cimport tenant_may_have
from allotment._core.mechanism.pool cimport (
    pause_failed, pool_clear, pool_delete, pool_find, pool_init, pool_of_tag, route_end, route_find,
    route_request, free_list_for)
from allotment._core.mechanism.ranges cimport (
    LEAST_ALIGNMENT, await_departure, fault_of_address, grant_access, is_anybodys)
from allotment._core.mechanism.reclaim cimport release_down_to, release_everything, release_one_pool
from allotment._core.mechanism.segment cimport finish_departures
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.mechanism.streams cimport (
    anything_waits, poll_events, settle_deferred, stream_for, streams_clear, use_record)
from allotment._core.model.model cimport (
    AWAKE, FAILED_EXACT_ADDRESS, FAILED_EXPANDABLE_BASE, FAILED_GIVEN_ADDRESS, FAILED_NOT_ROUTING,
    FAILED_OUT_OF_MEMORY, FAILED_PAUSED, FILTER_CAPTURE, FOR_TAGS, FOR_TENANTS, NO_FAILURE, NO_LIMITER, PEERS_MOST,
    Block, Chunk, Deferred, Engine, Failure, FreeMemoryCallback, PendingEvent, Placement, Pool, Half, Range, Request,
    Route, StreamRecord, StreamUse, no_limit)
from allotment._core.model.rules cimport Rules
from allotment._core.model.sizes cimport MIN_BLOCK, Tuning, round_size
from allotment._core.placement.pytorch.classes cimport half_for_size
from allotment._core.placement.pytorch.policy cimport hit_address, hit_free_list_as_asked, torch_placement
from allotment._core.records.stats cimport frees_so_far, stats_clear, stats_init, tally_now
from allotment._core.records.tags cimport tag_here, tags_are_used
from allotment._core.records.trace cimport ACTION_ANNOTATE, trace_clear, trace_init, trace_report, trace_set_metadata
from allotment._core.tools.forks cimport LONG_LOCK, guard_forks, unguard_forks
from allotment._core.tools.lock cimport lock_is_mine
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_put, map_reserve
from allotment._core.tools.slab cimport slab_clear, slab_init


cdef Engine* engine_create(DeviceTable* table, const Tuning* tuning, const Rules* rules, const Placement* placement,
                           Failure* failure) noexcept nogil:
    """`placement` serves all pools created without naming one."""
    cdef Engine* engine = <Engine*> calloc(1, sizeof(Engine))
    cdef bytes_t unused
    cdef status_t status
    if engine == NULL:
        host_memory_failed(failure)
        return NULL
    engine.table = table
    engine.tuning = tuning[0]
    engine.rules = rules[0]
    engine.fork_guard.start_anew = leave_parent
    engine.fork_guard.owner = engine
    guard_forks(&engine.fork_guard, LONG_LOCK, &engine.lock)
    slab_init(&engine.block_slab, sizeof(Block))
    slab_init(&engine.use_slab, sizeof(StreamUse))
    slab_init(&engine.pending_slab, sizeof(PendingEvent))
    slab_init(&engine.deferred_slab, sizeof(Deferred))
    slab_init(&engine.chunk_slab, sizeof(Chunk))
    stats_init(&engine.stats, tuning.max_split)
    trace_init(&engine.trace)
    engine.placement = placement
    # PyTorch's: it can grow in place, page by page, and never moves a block.
    engine.tag_placement = torch_placement()
    if not (map_init(&engine.blocks) and map_init(&engine.direct) and map_init(&engine.streams)
            and map_init(&engine.pools) and map_init(&engine.pool_tallies) and map_init(&engine.holds)):
        host_memory_failed(failure)
        discard(engine)
        return NULL
    if table.segment_allocate == NULL or table.segment_free == NULL:
        device_failed(failure, UNSUPPORTED, b"segment_allocate")
        discard(engine)
        return NULL
    engine.soft_limit = no_limit()
    engine.slow_path_reasons = FOR_TAGS if tags_are_used() else 0
    # A device that cannot report its memory has 0 here: it supports no fraction of it, and no expandable segments.
    if table.memory_info != NULL:
        status = table.memory_info(table.self, &unused, &engine.total_memory)
        if status != OK:
            device_failed(failure, status, b"memory_info")
            discard(engine)
            return NULL
    if not pool_init(engine, &engine.defaults, 0, 0, placement, failure):
        discard(engine)
        return NULL
    return engine


cdef void leave_parent(void* owner) noexcept nogil:
    """In a child of fork, without the parent's other threads."""
    cdef Engine* engine = <Engine*> owner
    # Otherwise the fork bypassed Python, and another thread was in the middle of a change.
    if lock_is_mine(&engine.lock):
        finish_departures(engine)


cdef void discard(Engine* engine) noexcept nogil:
    """Free the engine's own records."""
    cdef FreeMemoryCallback* callback
    unguard_forks(&engine.fork_guard)
    while engine.routes != NULL:
        route_end(engine, engine.routes)
    while engine.first_pool != NULL:
        pool_delete(engine, engine.first_pool)
    while engine.callbacks != NULL:
        callback = engine.callbacks
        engine.callbacks = callback.next
        free(callback)
    captures_clear(engine)
    holds_clear(engine)
    pool_clear(engine, &engine.defaults)
    streams_clear(engine)
    map_clear(&engine.blocks)
    map_clear(&engine.direct)
    map_clear(&engine.streams)
    map_clear(&engine.pools)
    map_clear(&engine.pool_tallies)
    stats_clear(&engine.stats)
    trace_clear(&engine.trace)
    slab_clear(&engine.block_slab)
    slab_clear(&engine.use_slab)
    slab_clear(&engine.pending_slab)
    slab_clear(&engine.deferred_slab)
    slab_clear(&engine.chunk_slab)
    free(engine.late_frees)
    free(engine.accounts)
    free(engine.by_address)
    free(engine)


cdef bint engine_destroy(Engine* engine) noexcept nogil:
    """Return everything to the device and free the engine.

    Returns False and keeps the engine if memory is still in use, whose addresses must stay valid, or if this thread is
    inside: then a fork holds the lock, and the last reference went in between.
    """
    cdef bint empty
    if lock_is_mine(&engine.lock):
        return False
    engine_enter(engine)
    empty = engine_retire(engine)
    engine_leave(engine)
    if not empty:
        return False
    discard(engine)
    return True


cdef void engine_discard(Engine* engine) noexcept nogil:
    """Free the engine's own records, even of ranges and pools that hold memory.

    pre: nothing must return to the device
    """
    cdef Range* following
    cdef Range* range_ = engine.first_range
    while range_ != NULL:
        following = range_.next
        free(range_.views)
        free(range_)
        range_ = following
    discard(engine)


cdef bint engine_retire(Engine* engine) noexcept nogil:
    """Release all free memory; return whether that was everything. The engine itself stays usable."""
    cdef Pool* pool = engine.first_pool
    cdef Failure failure
    while engine.routes != NULL:
        route_end(engine, engine.routes)
    while pool != NULL:
        if not pool.freeable:
            pool.use_count = 0
            pool.freeable = True
            engine.freeable_count += 1
        pool = pool.next
    if not (release_everything(engine, False, 0, &failure)
            and engine.defaults.placement.retire(engine, &engine.defaults, &failure)):
        return False
    return engine.first_range == NULL and engine.direct.count == 0 and tally_now(&engine.stats.reserved_bytes) == 0


# --- requests ----------------------------------------------------------------------------------------------

cdef bint begin_routed(Engine* engine, Request* request) noexcept nogil:
    """Process waiting blocks at the start of a request. pre: request_begin"""
    if engine.routes == NULL:
        return complete_finished(engine, request)
    if not is_inside_capture(engine, request.stream, &request.capturing, &request.failure):
        return False
    if not request.capturing:
        return not anything_waits(engine) or poll_events(engine, request.context, &request.failure)
    return not engine.tuning.stream_reuse or reuse_in_capture(
        engine, request.stream, request.context, &request.failure)


cdef Pool* pool_of_request(Engine* engine, Request* request) noexcept nogil:
    """Process waiting blocks and return the pool that serves a request; NULL with the reason in request.failure."""
    cdef Pool* pool
    if not begin_routed(engine, request):
        return NULL
    pool = route_request(engine, request)
    if pool == &engine.defaults and engine.slow_path_reasons & FOR_TAGS and tag_here() != 0:
        pool = pool_of_tag(engine, tag_here(), &request.failure)
    if pool != NULL and pool.sleep != AWAKE:
        pause_failed(&request.failure, FAILED_PAUSED, pool)
        return NULL
    return pool


cdef Block* serve_slow_path(Engine* engine, Request* request) noexcept nogil:
    """`serve_from_cache` for an engine with routes, tags or tenants with limits."""
    cdef Pool* pool = pool_of_request(engine, request)
    cdef StreamRecord* stream
    cdef bint is_virtual
    if pool == NULL:
        return NULL
    is_virtual = pool.tag != 0 or pool.sleeps_with != 0
    if not is_virtual and not engine.slow_path_reasons & FOR_TENANTS:
        return serve_from_pool(engine, request, pool)
    request.rounded = round_size(&engine.tuning, request.size)
    stream = stream_for(engine, request.stream)
    request.free_list = free_list_for(engine, half_for_request(pool, request), stream) if stream != NULL else NULL
    if request.free_list == NULL:
        host_memory_failed(&request.failure)
        return NULL
    if engine.slow_path_reasons & FOR_TENANTS and not tenant_may_have(engine, request):
        return NULL
    if not is_virtual:
        return serve_from_pool(engine, request, pool)
    request.expandable = engine.table.capabilities & CAN_VIRTUAL != 0 and engine.total_memory != 0
    return hit_free_list_as_asked(engine, request)


cdef inline Half* half_for_request(Pool* pool, const Request* request) noexcept nogil:
    return &pool.large if pool.large.arena != NULL else half_for_size(pool, request.rounded)


cdef address_t allocate_direct(Engine* engine, Request* request) noexcept nogil:
    """Bypass the cache: a device allocation of exactly the request. Changes no counter."""
    cdef address_t address = 0
    cdef unlocked_t unlocked
    cdef status_t status
    request.failure.reason = NO_FAILURE
    if not map_reserve(&engine.direct, engine.direct_leaving + 1):
        host_memory_failed(&request.failure)
        return 0
    status = engine.table.segment_allocate(engine.table.self, request.size, request.stream, &address)
    if status == OK:
        await_departure(engine, address, request.size)
        request.failure.fault = fault_of_address(engine, address, request.size, LEAST_ALIGNMENT)
        if request.failure.fault == NULL:
            map_put(&engine.direct, address, <void*> <size_t> request.size)
            return address
        if not is_anybodys(engine, address, request.size):
            unlocked = begin_unlocked(engine)
            engine.table.segment_free(engine.table.self, address, request.size)
            end_unlocked(engine, unlocked)
        request.failure.reason = FAILED_GIVEN_ADDRESS
        request.failure.operation = b"segment_allocate"
        request.failure.address = address
        request.failure.requested = request.size
        return 0
    device_failed(&request.failure, status, b"segment_allocate")
    if status == OUT_OF_MEMORY:
        request.failure.reason = FAILED_OUT_OF_MEMORY
        request.failure.requested = request.failure.rounded = request.failure.segment = request.size
        request.failure.stream = request.stream
        request.failure.limited = request.failure.expandable = False
        request.failure.range_bytes = 0
        request.failure.allocated = request.failure.reserved = 0
        request.failure.private_free = request.failure.largest_free = 0
        request.failure.joins = False
        request.failure.limiter = NO_LIMITER
        request.failure.waiting = 0
        request.failure.frees = frees_so_far(&engine.stats)
        request.failure.context = request.context
        request.failure.pool_first = request.failure.pool_second = 0
        note_device_memory(engine, &request.failure)
    return 0


cdef address_t engine_allocate(Engine* engine, Request* request) noexcept nogil:
    """Serve a request from beginning to end, with or without the cache; 0 with the reason in request.failure."""
    cdef Block* block
    if engine.uncached:
        return allocate_direct(engine, request)
    block = serve(engine, request)
    return block.address if block != NULL else 0


cdef Block* engine_serve_from_cache(Engine* engine, Request* request) noexcept nogil:
    return serve_from_cache(engine, request)


cdef address_t engine_allocate_missed(Engine* engine, Request* request) noexcept nogil:
    """Finish a request that missed the cache."""
    cdef Block* block = serve_missed(engine, request)
    return block.address if block != NULL else 0


cdef Block* serve_missed(Engine* engine, Request* request) noexcept nogil:
    cdef count_t retries = engine.stats.alloc_retries
    cdef count_t reserved = tally_now(&engine.stats.reserved_bytes)
    cdef Block* block
    request.failure.limiter = NO_LIMITER
    block = request.free_list.half.pool.placement.miss(engine, request)
    if engine.stats.alloc_retries != retries:
        reserved += <count_t> request.segment if block != NULL else 0
        request.given_back = max(reserved - tally_now(&engine.stats.reserved_bytes), 0)
    return block


cdef Block* serve_from_arena(Engine* engine, Request* request, Pool* pool, StreamRecord* stream) noexcept nogil:
    """The part of `serve_from_cache` for a placement with its own memory."""
    request.free_list = free_list_for(engine, &pool.large, stream)
    if request.free_list == NULL:
        host_memory_failed(&request.failure)
        return NULL
    return pool.placement.hit(engine, request)


cdef address_t engine_allocate_at(Engine* engine, Request* request, address_t address) noexcept nogil:
    """Serve a request for one address, which must be free in its pool and for its stream. Allocates no new memory.

    Only PyTorch's placement supports this.
    """
    cdef Pool* pool
    cdef StreamRecord* stream
    cdef Half* half
    cdef Block* front = NULL
    cdef Block* block
    request.failure.address = address
    if address % MIN_BLOCK != 0:
        request.failure.reason = FAILED_EXACT_ADDRESS
        return 0
    request_begin(request)
    pool = pool_of_request(engine, request)
    if pool == NULL:
        return 0
    request.rounded = round_size(&engine.tuning, request.size)
    half = half_for_size(pool, request.rounded)
    if half.arena != NULL:
        request.failure.reason = FAILED_EXACT_ADDRESS
        return 0
    stream = stream_for(engine, request.stream)
    request.free_list = free_list_for(engine, half, stream) if stream != NULL else NULL
    if request.free_list == NULL:
        host_memory_failed(&request.failure)
        return 0
    engine.trace.exact_address = True
    block = hit_address(engine, request, address, &front)
    if front != NULL:
        front.context = 0
        free_at_once_inline(engine, address_take(engine, front.address), 0)
    engine.trace.exact_address = False
    if block != NULL:
        return block.address
    if request.failure.reason == NO_FAILURE:
        request.failure.reason = FAILED_EXACT_ADDRESS
    return 0


cdef bint engine_free(Engine* engine, address_t address, uint32_t context, Failure* failure) noexcept nogil:
    cdef Block* block = address_take(engine, address)
    if not is_freed_at_once(block):
        return free_asking_device(engine, block, address, context, failure)
    free_at_once_inline(engine, block, context)
    return True


cdef void engine_free_at_once(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    free_at_once_inline(engine, block, context)


# --- the rest ----------------------------------------------------------------------------------------------

cdef Block* allocated_at(Engine* engine, address_t address, Failure* failure) noexcept nogil:
    cdef Block* block = block_at(engine, address)
    if block == NULL:
        address_failed(failure, address)
    return block


cdef bint engine_record_stream(Engine* engine, address_t address, stream_t stream, Failure* failure) noexcept nogil:
    """Record another user of a block. Memory allocated without the cache has no deferred free."""
    cdef Block* block
    cdef StreamRecord* record
    cdef bint captured
    if map_get(&engine.direct, address) != NULL:
        return True
    block = allocated_at(engine, address, failure)
    if block == NULL:
        return False
    if block.free_list.stream.handle == stream:
        return True
    if not is_inside_capture(engine, 0, &captured, failure):
        return False
    record = stream_for(engine, stream)
    if record == NULL or not use_record(engine, block, record, captured):
        return host_memory_failed(failure)
    return True


cdef bint engine_empty_cache(Engine* engine, uint64_t first, uint64_t second, uint32_t context,
                             Failure* failure) noexcept nogil:
    cdef Pool* pool
    cdef bint captured
    if not is_inside_capture(engine, 0, &captured, failure):
        return False
    if first == 0 and second == 0:
        return release_everything(engine, captured, context, failure)
    pool = pool_find(engine, first, second)
    return pool == NULL or release_one_pool(engine, pool, captured, context, failure)


cdef bint engine_trim(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    """Release cached memory until at most `keep` is reserved; inside a capture, only that of pools without users."""
    cdef bint captured
    if not is_inside_capture(engine, 0, &captured, failure):
        return False
    if captured:
        return release_everything(engine, True, context, failure)
    return release_down_to(engine, keep, context, failure)


cdef bint engine_base(Engine* engine, address_t address, address_t* base, bytes_t* size,
                      Failure* failure) noexcept nogil:
    cdef void* direct = map_get(&engine.direct, address)
    cdef Block* block
    if direct != NULL:
        base[0] = address
        size[0] = <bytes_t> <size_t> direct
        return True
    block = allocated_at(engine, address, failure)
    if block == NULL:
        return False
    if not is_plain(block):
        failure.reason = FAILED_EXPANDABLE_BASE
        return False
    base[0] = block.range.base
    size[0] = block.range.size
    return True


cdef bint engine_end_routing(Engine* engine, uint64_t first, uint64_t second, uint32_t context,
                             Failure* failure) noexcept nogil:
    """Stop serving requests from a pool. The caller releases its own use of the pool."""
    cdef Route* route = route_find(engine, first, second)
    if route == NULL:
        return pool_failed(failure, FAILED_NOT_ROUTING, first, second)
    if route.filter.kind == FILTER_CAPTURE and not forget_capture(engine, route.filter.value, failure):
        return False
    if engine.tuning.stream_reuse and engine.rules.end_of_routing_settles and not settle_deferred(
            engine, route.pool, context, failure):
        return False
    route = route_find(engine, first, second)       # settling may have released the lock
    if route != NULL:
        route_end(engine, route)
    return True


cdef bint grant_in_arenas(Engine* engine, device_t device, Failure* failure) noexcept nogil:
    """Give a device access to the memory that placements have mapped themselves."""
    cdef Pool* pool = &engine.defaults
    while pool != NULL:
        if pool.placement.grant != NULL and not pool.placement.grant(engine, pool, device, failure):
            return False
        pool = engine.first_pool if pool == &engine.defaults else pool.next
    return True


cdef bint engine_add_peer(Engine* engine, device_t device, Failure* failure) noexcept nogil:
    """Give another device access to all current and later mappings."""
    cdef int peer
    for peer in range(engine.peer_count):
        if engine.peers[peer] == device:
            return True
    if engine.peer_count == PEERS_MOST:
        return host_memory_failed(failure)
    if not (grant_access(engine, device, failure) and grant_in_arenas(engine, device, failure)):
        return False
    engine.peers[engine.peer_count] = device
    engine.peer_count += 1
    return True


cdef void engine_limit_share(Engine* engine, double share) noexcept nogil:
    """Limit reserved memory to a fraction of the device's memory; 1.0 means no limit."""
    cdef double most = share * <double> engine.total_memory
    engine.limited = share < 1.0
    engine.limit = <bytes_t> (round(most) if engine.rules.limit_is_rounded else most)


cdef bint engine_annotate(Engine* engine, address_t address, uint32_t text, uint32_t context,
                          Failure* failure) noexcept nogil:
    """Attach a text to a block in use, as an entry of the history."""
    cdef Block* block = allocated_at(engine, address, failure)
    cdef Pool* pool
    cdef uint32_t before
    if block == NULL:
        return False
    pool = block.free_list.half.pool
    before = trace_set_metadata(text)
    trace_report(&engine.trace, ACTION_ANNOTATE, address, block.requested, block.free_list.stream.handle,
                 pool.first, pool.second, context)
    trace_set_metadata(before)
    return True


cdef bint engine_reserve_ranges(Engine* engine, stream_t stream, bytes_t size, Failure* failure) noexcept nogil:
    """Set the size of new expandable ranges for a stream; 0 = as set for all streams."""
    cdef StreamRecord* record = stream_for(engine, stream)
    if record == NULL:
        return host_memory_failed(failure)
    record.range_bytes = size
    return True
