from libc.stdlib cimport calloc, free
from libc.string cimport strcmp

from allotment._core.contract.types cimport bytes_t, thread_t
from allotment._core.mechanism.failure cimport host_memory_failed, note_device_memory
from allotment._core.mechanism.frees cimport finish_late_frees
from allotment._core.mechanism.pool cimport pool_release, route_begin, route_end, route_find, free_list_for
from allotment._core.mechanism.ranges cimport configured_range_bytes
from allotment._core.mechanism.shortage cimport share_of_memory
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.model.model cimport (
    AWAKE, FAILED_DEVICE, FAILED_OUT_OF_MEMORY, FAILED_REJECTED, FILTER_THREAD, LIMIT_OF_POOL, NO_LIMITER, Block,
    CallbackRun, Engine, Failure, Filter, FreeMemoryCallback, Pool, Request, FreeList, free_memory_t)
from allotment._core.records.stats cimport frees_so_far, tally_now
from allotment._core.records.trace cimport ACTION_OOM, trace_report
from allotment._core.tools.lock cimport this_thread


cdef bint callbacks_freed(Engine* engine) noexcept nogil:
    """Run the free-memory callbacks; return whether one freed something. Has an unlocked section."""
    cdef unlocked_t unlocked
    cdef FreeMemoryCallback* callback = engine.callbacks
    cdef FreeMemoryCallback* following
    cdef CallbackRun run
    cdef bint freed = False
    if runs_callbacks(engine, this_thread()):
        return False
    run.thread = this_thread()
    run.next = engine.callback_runs
    engine.callback_runs = &run
    while callback != NULL:
        if not callback.removed:
            callback.running += 1
            unlocked = begin_unlocked(engine)
            freed |= callback.run(callback.self)
            end_unlocked(engine, unlocked)
            callback.running -= 1
        following = callback.next
        if callback.removed and callback.running == 0:
            forget_callback(engine, callback)
        callback = following
    end_run(engine, &run)
    if freed:
        finish_late_frees(engine)
    return freed


cdef bint runs_callbacks(const Engine* engine, thread_t thread) noexcept nogil:
    """Whether the thread is running callbacks: a request made by a callback does not invoke callbacks."""
    cdef CallbackRun* run = engine.callback_runs
    while run != NULL and run.thread != thread:
        run = run.next
    return run != NULL


cdef void end_run(Engine* engine, CallbackRun* run) noexcept nogil:
    cdef CallbackRun** link = &engine.callback_runs
    while link[0] != run:
        link = &link[0].next
    link[0] = run.next


cdef void forget_callback(Engine* engine, FreeMemoryCallback* callback) noexcept nogil:
    cdef FreeMemoryCallback** link = &engine.callbacks
    while link[0] != callback:
        link = &link[0].next
    link[0] = callback.next
    free(callback)


cdef bint callback_add(Engine* engine, free_memory_t run, void* self) noexcept nogil:
    """Append a callback; False if host memory is short."""
    cdef FreeMemoryCallback** link = &engine.callbacks
    cdef FreeMemoryCallback* added = <FreeMemoryCallback*> calloc(1, sizeof(FreeMemoryCallback))
    if added == NULL:
        return False
    added.run = run
    added.self = self
    while link[0] != NULL:
        link = &link[0].next
    link[0] = added
    return True


cdef bint callback_remove(Engine* engine, void* self) noexcept nogil:
    """Stop calling a callback; False if unknown.

    A thread that runs it needs `self` until `callback_runs` is NULL.
    """
    cdef FreeMemoryCallback* callback = engine.callbacks
    while callback != NULL and (callback.removed or callback.self != self):
        callback = callback.next
    if callback == NULL:
        return False
    callback.removed = True
    if callback.running == 0:
        forget_callback(engine, callback)
    return True


cdef inline bint lends(Engine* engine, const Pool* pool, bint early) noexcept nogil:
    if pool.sleep != AWAKE:
        return False
    return pool.lent and route_find(engine, pool.first, pool.second) == NULL if early else pool.use_on_oom


cdef Block* borrow(Engine* engine, Request* request, bint early) noexcept nogil:
    """Return an allocated block of a lender; NULL with NO_FAILURE if no lender has one. pre: no failure"""
    cdef Pool* pool = engine.first_pool
    cdef Pool* following
    cdef FreeList* own = request.free_list
    cdef Filter mine
    cdef Block* block = NULL
    mine.kind = FILTER_THREAD
    mine.value = 0
    mine.accepts = NULL
    mine.drop = NULL
    mine.self = NULL
    while pool != NULL and block == NULL:
        following = pool.next
        if lends(engine, pool, early):
            if not route_begin(engine, pool.first, pool.second, mine, &request.failure):
                break
            request.free_list = free_list_for(engine, &pool.large, own.stream)
            if request.free_list == NULL:
                host_memory_failed(&request.failure)
            else:
                block = pool.placement.lend(engine, request)
            request.free_list = own
            route_end(engine, route_find(engine, pool.first, pool.second))
            pool_release(engine, pool.first, pool.second, &request.failure)
        pool = following
    return block


cdef void note_out_of_memory(Engine* engine, Request* request) noexcept nogil:
    """Gather the facts as they are after the last release."""
    cdef Failure* failure = &request.failure
    cdef Pool* pool = request.free_list.half.pool
    failure.no_addresses = failure.reason == FAILED_DEVICE and strcmp(failure.operation, b"range_reserve") == 0
    note_device_memory(engine, failure)
    trace_report(&engine.trace, ACTION_OOM, failure.device_free, request.rounded, request.stream,
                 pool.first, pool.second, request.context)
    engine.stats.ooms += 1
    failure.reason = FAILED_OUT_OF_MEMORY
    failure.limited = engine.limited or failure.limiter == LIMIT_OF_POOL
    failure.limit = pool.limits.hard if failure.limiter == LIMIT_OF_POOL else engine.limit
    note_facts(engine, request)


cdef void note_rejection(Engine* engine, Request* request) noexcept nogil:
    """Record that the settings refuse a request. That is no out-of-memory event, and nothing was tried to avoid it."""
    cdef Failure* failure = &request.failure
    engine.stats.oom_rejections += 1
    failure.reason = FAILED_REJECTED
    failure.no_addresses = False
    failure.limiter = NO_LIMITER
    failure.limited = True
    failure.limit = share_of_memory(engine)
    failure.device_free = 0
    failure.device_total = engine.total_memory
    note_facts(engine, request)


cdef void note_facts(Engine* engine, Request* request) noexcept nogil:
    """Store what the engine itself knows about why a request failed."""
    cdef Failure* failure = &request.failure
    cdef Pool* pool = engine.first_pool
    failure.pool_first = request.free_list.half.pool.first
    failure.pool_second = request.free_list.half.pool.second
    failure.context = request.context
    failure.frees = frees_so_far(&engine.stats)
    failure.waiting = <bytes_t> (tally_now(&engine.stats.active_bytes) - tally_now(&engine.stats.allocated_bytes))
    failure.requested = request.size
    failure.rounded = request.rounded
    failure.segment = request.segment
    failure.stream = request.stream
    failure.expandable = engine.tuning.expandable
    failure.range_bytes = configured_range_bytes(engine, request.free_list.stream)
    failure.allocated = <bytes_t> tally_now(&engine.stats.allocated_bytes)
    failure.reserved = <bytes_t> tally_now(&engine.stats.reserved_bytes)
    failure.private_free = failure.largest_free = failure.joinable = 0
    failure.joins = False
    if engine.terse:
        return
    while pool != NULL:
        failure.private_free += pool.placement.free_bytes(engine, pool)
        pool = pool.next
    failure.largest_free = largest_free_block(engine)
    pool = request.free_list.half.pool
    failure.joins = pool.placement.joinable != NULL
    if failure.joins:
        failure.joinable = pool.placement.joinable(engine, pool)


cdef bytes_t largest_free_block(Engine* engine) noexcept nogil:
    """Return the size of the largest free block of all pools and streams."""
    cdef Pool* pool = engine.first_pool
    cdef bytes_t largest = engine.defaults.placement.largest_free(engine, &engine.defaults)
    while pool != NULL:
        largest = max(largest, pool.placement.largest_free(engine, pool))
        pool = pool.next
    return largest
