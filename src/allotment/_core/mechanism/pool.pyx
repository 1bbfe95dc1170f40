from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from allotment._core.contract.table cimport CAN_VIRTUAL, OK, status_t
from allotment._core.contract.types cimport bytes_t, capture_t, count_t, stream_t
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed, pool_failed
from allotment._core.mechanism.pool cimport has_limits, is_impure, pool_key
from allotment._core.model.model cimport (
    BIN_COUNT, FAILED_ALREADY_ROUTING, FAILED_POOL_FREEABLE, FAILED_POOL_ID, FAILED_POOL_IN_USE,
    FAILED_POOL_PLACEMENT, FAILED_POOL_UNKNOWN, FILTER_ALL, FILTER_CAPTURE, FILTER_STREAM,
    FILTER_THREAD, FOR_ROUTES, NO_FAILURE, Block, Engine, Failure, Filter, Placement, Pool, Half, RawAllocator, Request,
    Route, FreeList, StreamRecord, no_limit)
from allotment._core.records.stats cimport LARGE, SMALL, PoolTally, tally_move
from allotment._core.records.tags cimport tag_here, tag_pool_id
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.lock cimport this_thread
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve


# --- free lists ---------------------------------------------------------------------------------------------

cdef FreeList* free_list_make(Engine* engine, Half* half, StreamRecord* stream) noexcept nogil:
    cdef FreeList* free_list = <FreeList*> map_get(&half.by_stream, stream.handle + 1)
    if free_list == NULL:
        if not map_reserve(&half.by_stream):
            return NULL
        free_list = <FreeList*> calloc(1, sizeof(FreeList))
        if free_list == NULL:
            return NULL
        if half.size_class == SMALL:
            free_list.bins = <Block**> malloc(BIN_COUNT * sizeof(Block*))
            if free_list.bins == NULL:
                free(free_list)
                return NULL
        free_list.half = half
        free_list.stream = stream
        stream.users += 1
        free_list.next = half.free_lists
        half.free_lists = free_list
        map_put(&half.by_stream, stream.handle + 1, free_list)
    half.recent = free_list
    return free_list


cdef void free_list_free(FreeList* free_list) noexcept nogil:
    free_list.stream.users -= 1
    free(free_list.bins)
    free(free_list)


cdef void drop_idle_free_lists(Pool* pool) noexcept nogil:
    """Delete the free lists of streams that the pool has no memory for.

    A request in progress keeps all free lists of its pool.
    """
    if pool.asking == 0 and pool.large.arena == NULL:
        drop_idle_of(&pool.small)
        drop_idle_of(&pool.large)


cdef void drop_idle_of(Half* half) noexcept nogil:
    cdef FreeList** link = &half.free_lists
    cdef FreeList* free_list
    half.recent = NULL
    while link[0] != NULL:
        free_list = link[0]
        if free_list.ranges == 0:
            link[0] = free_list.next
            map_pop(&half.by_stream, free_list.stream.handle + 1)
            free_list_free(free_list)
        else:
            link = &free_list.next


cdef bint half_init(Half* half, Pool* pool, int size_class) noexcept nogil:
    half.pool = pool
    half.size_class = size_class
    return map_init(&half.by_stream)


cdef void half_clear(Half* half) noexcept nogil:
    cdef FreeList* free_list = half.free_lists
    cdef FreeList* following
    while free_list != NULL:
        following = free_list.next
        free_list_free(free_list)
        free_list = following
    map_clear(&half.by_stream)


cdef bint pool_init(Engine* engine, Pool* pool, uint64_t first, uint64_t second, const Placement* placement,
                    Failure* failure) noexcept nogil:
    """The caller must call `pool_clear`, also after a failure."""
    memset(pool, 0, sizeof(Pool))
    pool.first = first
    pool.second = second
    pool.use_count = 1
    pool.placement = placement
    pool.limits.hard = pool.limits.soft = no_limit()
    if not (half_init(&pool.small, pool, SMALL) and half_init(&pool.large, pool, LARGE)):
        return host_memory_failed(failure)
    if placement.create == NULL:
        return True
    pool.small.arena = pool.large.arena = placement.create(engine, pool, failure)
    return pool.large.arena != NULL


cdef void pool_clear(Engine* engine, Pool* pool) noexcept nogil:
    if pool.large.arena != NULL:
        pool.placement.destroy(engine, pool)
    half_clear(&pool.small)
    half_clear(&pool.large)
    free(pool.replay_streams)
    if pool.allocator.drop != NULL:
        pool.allocator.drop(pool.allocator.self)


# --- private pools ---------------------------------------------------------------------------------------

cdef inline bint is_pool_id(uint64_t first, uint64_t second) noexcept nogil:
    return (first == 0) != (second == 0) and (first | second) >> 62 == 0


cdef Pool* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil:
    if not is_pool_id(first, second):
        return NULL
    return <Pool*> map_get(&engine.pools, pool_key(first, second))


cdef bint pool_absent(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    cdef PoolTally* tally = NULL
    if is_pool_id(first, second):
        tally = <PoolTally*> map_get(&engine.pool_tallies, pool_key(first, second))
    return pool_failed(failure, FAILED_POOL_FREEABLE if tally != NULL and tally.spent else FAILED_POOL_UNKNOWN,
                       first, second)


cdef bint pool_expect(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    if first == 0 and second == 0:
        return True
    if is_pool_id(first, second) and map_get(&engine.pool_tallies, pool_key(first, second)) != NULL:
        return True
    return pool_failed(failure, FAILED_POOL_UNKNOWN, first, second)


cdef bint tally_for(Engine* engine, Pool* pool) noexcept nogil:
    """Find or create the permanent tally of a pool's id; False if host memory is short."""
    cdef uint64_t key = pool_key(pool.first, pool.second)
    cdef PoolTally* tally = <PoolTally*> map_get(&engine.pool_tallies, key)
    if tally == NULL:
        tally = <PoolTally*> calloc(1, sizeof(PoolTally))
        if tally == NULL or not map_reserve(&engine.pool_tallies):
            free(tally)
            return False
        tally.first = pool.first
        tally.second = pool.second
        tally.next = engine.stats.pools
        engine.stats.pools = tally
        map_put(&engine.pool_tallies, key, tally)
    pool.tally = tally
    return True


cdef void count_reserved(Engine* engine, Half* half, count_t change) noexcept nogil:
    """Count physical memory that a pool gained or lost."""
    cdef Pool* pool = half.pool
    pool.reserved_bytes += <bytes_t> change
    tally_move(&engine.stats.reserved_bytes, half.size_class, change)
    if pool.tally != NULL:
        pool.tally.used = True
        tally_move(&pool.tally.reserved_bytes, half.size_class, change)


cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                const Placement* placement, Failure* failure) noexcept nogil:
    """Add a user to a pool, which is created if it does not exist. Owns `allocator` on success.

    `placement` NULL means the engine's own, or for an existing pool the one it has. A pool that is created inside a tag
    is paused with it.
    """
    cdef PoolTally* tally
    cdef Pool* pool
    cdef uint32_t tag = 0
    if not is_pool_id(first, second):
        return pool_failed(failure, FAILED_POOL_ID, first, second)
    pool = pool_find(engine, first, second)
    if pool != NULL:
        if pool.freeable:
            return pool_failed(failure, FAILED_POOL_FREEABLE, first, second)
        if allocator != NULL or (placement != NULL and placement != pool.placement):
            return pool_failed(failure, FAILED_POOL_IN_USE, first, second)
        pool.use_count += 1
        return True
    tally = <PoolTally*> map_get(&engine.pool_tallies, pool_key(first, second))
    if tally != NULL and tally.spent:
        return pool_absent(engine, first, second, failure)
    if (tag_here() != 0 and second <= tag_pool_id(0) and allocator == NULL and engine.total_memory != 0
            and engine.table.capabilities & CAN_VIRTUAL
            and (placement == NULL or placement == engine.tag_placement)):
        tag = tag_here()
        placement = engine.tag_placement
        if pool_of_tag(engine, tag, failure) == NULL:
            return False
    pool = <Pool*> malloc(sizeof(Pool))
    if pool == NULL or not map_reserve(&engine.pools):
        free(pool)
        return host_memory_failed(failure)
    if not pool_init(engine, pool, first, second, placement if placement != NULL else engine.placement, failure):
        pool_clear(engine, pool)
        free(pool)
        return False
    if not tally_for(engine, pool):
        host_memory_failed(failure)
        pool_clear(engine, pool)
        free(pool)
        return False
    if allocator != NULL:
        pool.allocator = allocator[0]
    if tag != 0:
        pool.sleeps_with = tag
        pool_find(engine, 0, tag_pool_id(tag)).sleepers += 1
    pool.prev = engine.last_pool
    if engine.last_pool != NULL:
        engine.last_pool.next = pool
    else:
        engine.first_pool = pool
    engine.last_pool = pool
    map_put(&engine.pools, pool_key(first, second), pool)
    return True


cdef Pool* pool_of_tag(Engine* engine, uint32_t tag, Failure* failure) noexcept nogil:
    cdef Pool* pool = pool_find(engine, 0, tag_pool_id(tag))
    if pool == NULL:
        if not pool_create_or_incref(engine, 0, tag_pool_id(tag), NULL, engine.tag_placement, failure):
            return NULL
        pool = pool_find(engine, 0, tag_pool_id(tag))
        pool.tag = tag
        engine.tag_count += 1
    engine.tag_requests += 1
    pool.used_at = engine.tag_requests
    return pool


cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    """Remove a user; a pool without users is freeable."""
    cdef Pool* pool = pool_find(engine, first, second)
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    if pool.freeable:
        return pool_failed(failure, FAILED_POOL_FREEABLE, first, second)
    pool.use_count -= 1
    if pool.use_count == 0:
        pool.freeable = True
        engine.freeable_count += 1
    return True


cdef enum:
    MOST_GONE = 1000        # deleted pools that the statistics keep; temporarily up to twice as many

cdef void forget_gone_pools(Engine* engine) noexcept nogil:
    """Keep the statistics of the newest deleted pools. Works in bulk, so a pool costs O(1) amortized."""
    cdef size_t gone = engine.pool_tallies.count - engine.pools.count
    cdef PoolTally** place = &engine.stats.pools
    cdef PoolTally* tally
    cdef size_t kept = 0
    if gone < 2 * MOST_GONE:
        return
    while place[0] != NULL:
        tally = place[0]
        if map_get(&engine.pools, pool_key(tally.first, tally.second)) != NULL:
            place = &tally.next
        elif kept < MOST_GONE:
            kept += 1
            place = &tally.next
        else:
            place[0] = tally.next
            map_pop(&engine.pool_tallies, pool_key(tally.first, tally.second))
            free(tally)


cdef void pool_delete(Engine* engine, Pool* pool) noexcept nogil:
    """pre: freeable, no memory left"""
    cdef Pool* slept_with = pool_find(engine, 0, tag_pool_id(pool.sleeps_with)) if pool.sleeps_with != 0 else NULL
    if slept_with != NULL:          # it goes first when the engine ends
        slept_with.sleepers -= 1
    map_pop(&engine.pools, pool_key(pool.first, pool.second))
    pool.tally.spent = pool.malloc_count > 0
    if pool.prev != NULL:
        pool.prev.next = pool.next
    else:
        engine.first_pool = pool.next
    if pool.next != NULL:
        pool.next.prev = pool.prev
    else:
        engine.last_pool = pool.prev
    engine.freeable_count -= 1
    if pool.use_on_oom:
        engine.lender_count -= 1
    engine.lent_count -= pool.lent
    engine.limit_count -= has_limits(&pool.limits)
    engine.tag_count -= pool.tag != 0
    pool_clear(engine, pool)
    free(pool)
    forget_gone_pools(engine)


cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil:
    cdef Pool* pool = pool_find(engine, first, second)
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    if pool.use_on_oom != on:
        engine.lender_count += 1 if on else -1
        pool.use_on_oom = on
    return True


cdef bint pool_set_lent(Engine* engine, uint64_t first, uint64_t second, bint on, Failure* failure) noexcept nogil:
    cdef Pool* pool = pool_find(engine, first, second)
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    engine.lent_count += on - pool.lent
    pool.lent = on
    return True


cdef bint pool_note_replay(Engine* engine, uint64_t first, uint64_t second, stream_t stream,
                           Failure* failure) noexcept nogil:
    """Note that a graph that uses the pool's memory runs on a stream."""
    cdef Pool* pool = pool_find(engine, first, second)
    cdef size_t i
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    for i in range(pool.replay_stream_count):
        if pool.replay_streams[i] == stream:
            return True
    if not make_room(<void**> &pool.replay_streams, &pool.replay_stream_room, pool.replay_stream_count,
                     sizeof(stream_t)):
        return host_memory_failed(failure)
    pool.replay_streams[pool.replay_stream_count] = stream
    pool.replay_stream_count += 1
    return True


cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    cdef Pool* pool = pool_find(engine, first, second)
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    if pool.large.arena != NULL:
        return pool_failed(failure, FAILED_POOL_PLACEMENT, first, second)
    pool.no_split = True
    return True


# --- routing ---------------------------------------------------------------------------------------------

cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil:
    cdef Route* route = engine.routes
    while route != NULL and (route.pool.first != first or route.pool.second != second):
        route = route.older
    return route


cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil:
    """Add a user to a pool, created if it does not exist, and route to it all requests that pass the filter.

    Owns `filter` on success.
    """
    cdef Route* route
    if route_find(engine, first, second) != NULL:
        return pool_failed(failure, FAILED_ALREADY_ROUTING, first, second)
    route = <Route*> malloc(sizeof(Route))
    if route == NULL:
        return host_memory_failed(failure)
    if not pool_create_or_incref(engine, first, second, NULL, NULL, failure):
        free(route)
        return False
    route.pool = pool_find(engine, first, second)
    route.filter = filter
    route.older = engine.routes
    engine.routes = route
    engine.slow_path_reasons |= FOR_ROUTES
    if is_impure(&filter):
        engine.impure_routes += 1
        route.pool.replayed = True
    return True


cdef void route_end(Engine* engine, Route* route) noexcept nogil:
    cdef Route** link = &engine.routes
    while link[0] != route:
        link = &link[0].older
    link[0] = route.older
    if engine.routes == NULL:
        engine.slow_path_reasons &= ~FOR_ROUTES
    if is_impure(&route.filter):
        engine.impure_routes -= 1
    if route.filter.drop != NULL:
        route.filter.drop(route.filter.self)
    free(route)


cdef bint accepts(Engine* engine, const Filter* filter, Request* request) noexcept nogil:
    """Whether a filter accepts a request; False with the reason in request.failure if the device call fails."""
    cdef capture_t capture = 0
    cdef status_t status
    if filter.kind == FILTER_ALL:
        return True
    if filter.kind == FILTER_STREAM:
        return filter.value == request.stream
    if filter.kind == FILTER_THREAD:
        if request.thread == 0:
            request.thread = this_thread()
        return filter.value == request.thread
    if filter.kind == FILTER_CAPTURE:
        if engine.table.capture_status == NULL:
            return False
        status = engine.table.capture_status(engine.table.self, request.stream, &capture)
        if status != OK:
            return device_failed(&request.failure, status, b"capture_status")
        return capture == filter.value and capture != 0
    return filter.accepts(filter.self, request.stream)


cdef Pool* route_request(Engine* engine, Request* request) noexcept nogil:
    """Return the pool that serves a request: that of the newest route that accepts it, else the default one.

    Returns NULL with the reason in request.failure if that cannot be determined: memory of the wrong pool would do
    harm.
    """
    cdef Route* route = engine.routes
    while route != NULL:
        if accepts(engine, &route.filter, request):
            return route.pool
        if request.failure.reason != NO_FAILURE:
            return NULL
        route = route.older
    return &engine.defaults
