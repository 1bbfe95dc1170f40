from allotment._core.contract.types cimport bytes_t
from allotment._core.mechanism.failure cimport host_memory_failed, note_device_memory
from allotment._core.mechanism.frees cimport finish_late_frees
from allotment._core.mechanism.pool cimport pool_release, route_begin, route_end, route_find, shelf_for
from allotment._core.mechanism.ranges cimport configured_range_bytes
from allotment._core.mechanism.shortage cimport share_of_memory
from allotment._core.model.model cimport (
    FAILED_OUT_OF_MEMORY, FAILED_REJECTED, FILTER_THREAD, Block, Engine, Failure, Filter, FreeMemoryCallback, Pool,
    Request, Shelf)
from allotment._core.records.stats cimport tally_now
from allotment._core.records.trace cimport ACTION_OOM, trace_report


cdef bint callbacks_freed(Engine* engine) noexcept nogil:
    """Run the free-memory callbacks; whether one of them freed something, which is done by now."""
    cdef FreeMemoryCallback* callback = engine.callbacks
    cdef bint freed = False
    while callback != NULL:
        freed |= callback.run(callback.self)
        callback = callback.next
    if freed:
        finish_late_frees(engine)
    return freed


cdef Block* borrow(Engine* engine, Request* request) noexcept nogil:
    """A block of a lender in the user's hands; NULL with NO_FAILURE if there is none. pre: no failure"""
    cdef Pool* pool = engine.first_pool
    cdef Pool* following
    cdef Shelf* own = request.shelf
    cdef Filter mine
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
                break
            request.shelf = shelf_for(engine, &pool.large, own.stream)
            if request.shelf == NULL:
                host_memory_failed(&request.failure)
            else:
                block = pool.placement.lend(engine, request)
            request.shelf = own
            route_end(engine, route_find(engine, pool.first, pool.second))
            pool_release(engine, pool.first, pool.second, &request.failure)
        pool = following
    return block


cdef void note_out_of_memory(Engine* engine, Request* request) noexcept nogil:
    """Gather the facts, as they are after the last release."""
    cdef Failure* failure = &request.failure
    cdef Pool* pool = request.shelf.rack.pool
    note_device_memory(engine, failure)
    trace_report(&engine.trace, ACTION_OOM, failure.device_free, request.rounded, request.stream,
                 pool.first, pool.second, request.context)
    engine.stats.ooms += 1
    failure.reason = FAILED_OUT_OF_MEMORY
    failure.limited = engine.limited
    failure.limit = engine.limit
    note_facts(engine, request)


cdef void note_rejection(Engine* engine, Request* request) noexcept nogil:
    """The settings refuse a request: no shortage that the history shows, and nothing was tried against it."""
    cdef Failure* failure = &request.failure
    engine.stats.oom_rejections += 1
    failure.reason = FAILED_REJECTED
    failure.limited = True
    failure.limit = share_of_memory(engine)
    failure.device_free = 0
    failure.device_total = engine.total_memory
    note_facts(engine, request)


cdef void note_facts(Engine* engine, Request* request) noexcept nogil:
    """What the engine itself knows about why a request was not served."""
    cdef Failure* failure = &request.failure
    cdef Pool* pool = engine.first_pool
    failure.requested = request.size
    failure.rounded = request.rounded
    failure.segment = request.segment
    failure.stream = request.stream
    failure.expandable = engine.tuning.expandable
    failure.range_bytes = configured_range_bytes(engine, request.shelf.stream)
    failure.allocated = <bytes_t> tally_now(&engine.stats.allocated_bytes)
    failure.reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
    failure.private_free = failure.largest_free = 0
    if engine.terse:
        return
    while pool != NULL:
        failure.private_free += pool.placement.free_bytes(engine, pool)
        pool = pool.next
    failure.largest_free = largest_free_block(engine)


cdef bytes_t largest_free_block(Engine* engine) noexcept nogil:
    """Over all pools and streams."""
    cdef Pool* pool = engine.first_pool
    cdef bytes_t largest = engine.defaults.placement.largest_free(engine, &engine.defaults)
    while pool != NULL:
        largest = max(largest, pool.placement.largest_free(engine, pool))
        pool = pool.next
    return largest
