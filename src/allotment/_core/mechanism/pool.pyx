from libc.stdint cimport uint64_t
from libc.stdlib cimport calloc, free, malloc
from libc.string cimport memset

from allotment._core.contract.table cimport OK, status_t
from allotment._core.contract.types cimport capture_t
from allotment._core.mechanism.failure cimport device_failed
from allotment._core.mechanism.free_index cimport index_insert, index_remove
from allotment._core.mechanism.pool cimport is_plain, is_split, pool_key
from allotment._core.model.model cimport (
    BIN_COUNT, FAILED_ALREADY_ROUTING, FAILED_HOST_MEMORY, FAILED_POOL_FREEABLE, FAILED_POOL_ID, FAILED_POOL_IN_USE,
    FAILED_POOL_UNKNOWN, FILTER_ALL, FILTER_CAPTURE, FILTER_FUNCTION, FILTER_STREAM, FILTER_THREAD, NO_FAILURE, Block,
    BlockPool, Engine, Failure, Filter, PoolOwner, RawAllocator, Reason, Request, Route, Shelf, StreamRecord)
from allotment._core.records.stats cimport LARGE, SMALL
from allotment._core.tools.lock cimport this_thread
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_pop, map_put, map_reserve


cdef inline bint fail(Failure* failure, Reason reason) noexcept nogil:
    failure.reason = reason
    return False


# --- shelves ---------------------------------------------------------------------------------------------

cdef Shelf* shelf_make(Engine* engine, BlockPool* pool, StreamRecord* stream) noexcept nogil:
    cdef Shelf* shelf = <Shelf*> map_get(&pool.by_stream, stream.handle + 1)
    if shelf == NULL:
        if not map_reserve(&pool.by_stream):
            return NULL
        shelf = <Shelf*> calloc(1, sizeof(Shelf))
        if shelf == NULL:
            return NULL
        if pool.size_class == SMALL:
            shelf.bins = <Block**> calloc(BIN_COUNT, sizeof(Block*))
            if shelf.bins == NULL:
                shelf_free(shelf)
                return NULL
        shelf.pool = pool
        shelf.stream = stream
        shelf.next = pool.shelves
        pool.shelves = shelf
        map_put(&pool.by_stream, stream.handle + 1, shelf)
    pool.recent = shelf
    return shelf


cdef void shelf_free(Shelf* shelf) noexcept nogil:
    free(shelf.bins)
    free(shelf)


cdef void put_on_shelf(Block* block) noexcept nogil:
    cdef BlockPool* pool = block.shelf.pool
    pool.free_bytes += block.size
    index_insert(block.shelf, block)
    if not is_split(block) and is_plain(block):
        block.releasable = True
        block.newer = NULL
        block.older = pool.newest
        if pool.newest != NULL:
            pool.newest.newer = block
        else:
            pool.oldest = block
        pool.newest = block
        pool.releasable_count += 1
        pool.releasable_gc_sum += block.gc_base


cdef void take_off_shelf(Block* block) noexcept nogil:
    cdef BlockPool* pool = block.shelf.pool
    pool.free_bytes -= block.size
    index_remove(block.shelf, block)
    if block.releasable:
        block.releasable = False
        if block.older != NULL:
            block.older.newer = block.newer
        else:
            pool.oldest = block.newer
        if block.newer != NULL:
            block.newer.older = block.older
        else:
            pool.newest = block.older
        pool.releasable_count -= 1
        pool.releasable_gc_sum -= block.gc_base


cdef bint block_pool_init(BlockPool* pool, PoolOwner* owner, int size_class) noexcept nogil:
    pool.owner = owner
    pool.size_class = size_class
    return map_init(&pool.by_stream)


cdef void block_pool_clear(BlockPool* pool) noexcept nogil:
    cdef Shelf* shelf = pool.shelves
    cdef Shelf* following
    while shelf != NULL:
        following = shelf.next
        shelf_free(shelf)
        shelf = following
    map_clear(&pool.by_stream)


cdef bint owner_init(PoolOwner* owner, uint64_t first, uint64_t second) noexcept nogil:
    memset(owner, 0, sizeof(PoolOwner))
    owner.first = first
    owner.second = second
    owner.use_count = 1
    return block_pool_init(&owner.small, owner, SMALL) and block_pool_init(&owner.large, owner, LARGE)


cdef void owner_clear(PoolOwner* owner) noexcept nogil:
    block_pool_clear(&owner.small)
    block_pool_clear(&owner.large)
    if owner.allocator.drop != NULL:
        owner.allocator.drop(owner.allocator.self)


# --- private pools ---------------------------------------------------------------------------------------

cdef inline bint is_pool_id(uint64_t first, uint64_t second) noexcept nogil:
    return (first == 0) != (second == 0) and (first | second) >> 62 == 0


cdef PoolOwner* pool_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil:
    if not is_pool_id(first, second):
        return NULL
    return <PoolOwner*> map_get(&engine.pools, pool_key(first, second))


cdef bint pool_create_or_incref(Engine* engine, uint64_t first, uint64_t second, RawAllocator* allocator,
                                Failure* failure) noexcept nogil:
    """One more user for a pool, which is made if it is not there. Takes `allocator` over on success."""
    cdef PoolOwner* owner
    if not is_pool_id(first, second):
        return fail(failure, FAILED_POOL_ID)
    owner = pool_find(engine, first, second)
    if owner != NULL:
        if owner.freeable:
            return fail(failure, FAILED_POOL_FREEABLE)
        if allocator != NULL:
            return fail(failure, FAILED_POOL_IN_USE)
        owner.use_count += 1
        return True
    owner = <PoolOwner*> malloc(sizeof(PoolOwner))
    if owner == NULL or not map_reserve(&engine.pools):
        free(owner)
        return fail(failure, FAILED_HOST_MEMORY)
    if not owner_init(owner, first, second):
        owner_clear(owner)
        free(owner)
        return fail(failure, FAILED_HOST_MEMORY)
    if allocator != NULL:
        owner.allocator = allocator[0]
    owner.prev = engine.last_pool
    if engine.last_pool != NULL:
        engine.last_pool.next = owner
    else:
        engine.first_pool = owner
    engine.last_pool = owner
    map_put(&engine.pools, pool_key(first, second), owner)
    return True


cdef bint pool_release(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    """One user less; without any, the pool is freeable."""
    cdef PoolOwner* owner = pool_find(engine, first, second)
    if owner == NULL:
        return fail(failure, FAILED_POOL_UNKNOWN)
    if owner.freeable:
        return fail(failure, FAILED_POOL_FREEABLE)
    owner.use_count -= 1
    if owner.use_count == 0:
        owner.freeable = True
        engine.freeable_count += 1
    return True


cdef void pool_delete(Engine* engine, PoolOwner* owner) noexcept nogil:
    """pre: freeable, no memory left"""
    map_pop(&engine.pools, pool_key(owner.first, owner.second))
    if owner.prev != NULL:
        owner.prev.next = owner.next
    else:
        engine.first_pool = owner.next
    if owner.next != NULL:
        owner.next.prev = owner.prev
    else:
        engine.last_pool = owner.prev
    engine.freeable_count -= 1
    if owner.use_on_oom:
        engine.lender_count -= 1
    owner_clear(owner)
    free(owner)


cdef bint pool_set_use_on_oom(Engine* engine, uint64_t first, uint64_t second, bint on,
                              Failure* failure) noexcept nogil:
    cdef PoolOwner* owner = pool_find(engine, first, second)
    if owner == NULL:
        return fail(failure, FAILED_POOL_UNKNOWN)
    if owner.use_on_oom != on:
        engine.lender_count += 1 if on else -1
        owner.use_on_oom = on
    return True


cdef bint pool_set_no_split(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    cdef PoolOwner* owner = pool_find(engine, first, second)
    if owner == NULL:
        return fail(failure, FAILED_POOL_UNKNOWN)
    owner.no_split = True
    return True


# --- routing ---------------------------------------------------------------------------------------------

cdef Route* route_find(Engine* engine, uint64_t first, uint64_t second) noexcept nogil:
    cdef Route* route = engine.routes
    while route != NULL and (route.owner.first != first or route.owner.second != second):
        route = route.older
    return route


cdef inline bint is_impure(const Filter* filter) noexcept nogil:
    """Whether applying the filter leaves the engine: asks the device, or calls somebody's function."""
    return filter.kind == FILTER_CAPTURE or filter.kind == FILTER_FUNCTION


cdef bint route_begin(Engine* engine, uint64_t first, uint64_t second, Filter filter,
                      Failure* failure) noexcept nogil:
    """One more user for a pool, made if it is not there, and all that passes the filter.

    Takes `filter` over on success.
    """
    cdef Route* route
    if route_find(engine, first, second) != NULL:
        return fail(failure, FAILED_ALREADY_ROUTING)
    route = <Route*> malloc(sizeof(Route))
    if route == NULL:
        return fail(failure, FAILED_HOST_MEMORY)
    if not pool_create_or_incref(engine, first, second, NULL, failure):
        free(route)
        return False
    route.owner = pool_find(engine, first, second)
    route.filter = filter
    route.older = engine.routes
    engine.routes = route
    if is_impure(&filter):
        engine.impure_routes += 1
    return True


cdef void route_end(Engine* engine, Route* route) noexcept nogil:
    cdef Route** link = &engine.routes
    while link[0] != route:
        link = &link[0].older
    link[0] = route.older
    if is_impure(&route.filter):
        engine.impure_routes -= 1
    if route.filter.drop != NULL:
        route.filter.drop(route.filter.self)
    free(route)


cdef bint accepts(Engine* engine, const Filter* filter, Request* request) noexcept nogil:
    """Whether a request passes; False with the reason in request.failure if the device would not say."""
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
        if engine.backend.capture_status == NULL:
            return False
        status = engine.backend.capture_status(engine.backend.self, request.stream, &capture)
        if status != OK:
            return device_failed(&request.failure, status, b"capture_status")
        return capture == filter.value and capture != 0
    return filter.accepts(filter.self, request.stream)


cdef PoolOwner* route_request(Engine* engine, Request* request) noexcept nogil:
    """The pool that serves a request: that of the newest route that accepts it, else the default one.

    NULL with the reason in request.failure if that cannot be told: memory of the wrong pool would do harm.
    """
    cdef Route* route = engine.routes
    while route != NULL:
        if accepts(engine, &route.filter, request):
            return route.owner
        if request.failure.reason != NO_FAILURE:
            return NULL
        route = route.older
    return &engine.defaults
