"""The engine's operations, for its owners: the Python API, the C entry points, replay.

Between `engine_enter` and `engine_leave` the caller holds the lock. Each operation returns whether it worked, with the
reason in a Failure otherwise. A failed operation leaves the engine consistent and unchanged, except that it may have
released or mapped memory on the way.

A request has two steps, so that a caller can release the interpreter lock only for the second:

    serve_from_cache  complete finished frees, round, choose the pool, allocate free memory       device: events only
    serve_missed      everything else that the pool's placement can do                            device: yes
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.table cimport DeviceTable
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.mechanism.block cimport complete_free, count_free_requested
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.frees cimport finish_late_frees, free_at_once
from allotment._core.mechanism.pool cimport free_list_for
from allotment._core.mechanism.streams cimport anything_waits, poll_events, stream_for
from allotment._core.model.model cimport (
    NO_FAILURE, Block, Engine, Failure, Placement, Pool, Half, Request, StreamRecord)
from allotment._core.model.rules cimport Rules
from allotment._core.model.sizes cimport Tuning, round_size
from allotment._core.placement.pytorch.classes cimport half_for_size
from allotment._core.placement.pytorch.policy cimport hit_last_freed, hit_on_free_list, hit_free_list
from allotment._core.placement.pytorch.free_lists cimport free_to_list_untraced
from allotment._core.tools.lock cimport allotment_lock_is_unused, lock_give, lock_is_mine, lock_try, lock_wait_outside

cdef Engine* engine_create(DeviceTable* table, const Tuning* tuning, const Rules* rules, const Placement* placement,
                           Failure* failure) noexcept nogil
cdef bint engine_retire(Engine* engine) noexcept nogil
cdef bint engine_destroy(Engine* engine) noexcept nogil
cdef void engine_discard(Engine* engine) noexcept nogil

cdef address_t allocate_direct(Engine* engine, Request* request) noexcept nogil
cdef Block* serve_from_arena(Engine* engine, Request* request, Pool* pool, StreamRecord* stream) noexcept nogil
cdef Block* serve_missed(Engine* engine, Request* request) noexcept nogil

cdef bint engine_free(Engine* engine, address_t address, uint32_t context, Failure* failure) noexcept nogil  # not 0

# The same as below, not inline: a compiler inlines a hot function into its caller only if it is the function's only
# caller.
cdef address_t engine_allocate(Engine* engine, Request* request) noexcept nogil
cdef address_t engine_allocate_missed(Engine* engine, Request* request) noexcept nogil
cdef Block* engine_serve_from_cache(Engine* engine, Request* request) noexcept nogil
cdef void engine_free_at_once(Engine* engine, Block* block, uint32_t context) noexcept nogil

cdef bint engine_record_stream(Engine* engine, address_t address, stream_t stream, Failure* failure) noexcept nogil
cdef bint engine_empty_cache(Engine* engine, uint64_t first, uint64_t second, uint32_t context,
                             Failure* failure) noexcept nogil
cdef bint engine_trim(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
cdef bint engine_base(Engine* engine, address_t address, address_t* base, bytes_t* size,
                      Failure* failure) noexcept nogil
cdef bint engine_end_routing(Engine* engine, uint64_t first, uint64_t second, uint32_t context,
                             Failure* failure) noexcept nogil
cdef void engine_limit_share(Engine* engine, double share) noexcept nogil
cdef address_t engine_allocate_at(Engine* engine, Request* request, address_t address) noexcept nogil
cdef bint engine_annotate(Engine* engine, address_t address, uint32_t text, uint32_t context,
                          Failure* failure) noexcept nogil
cdef bint engine_reserve_ranges(Engine* engine, stream_t stream, bytes_t size, Failure* failure) noexcept nogil
cdef bint engine_add_peer(Engine* engine, device_t device, Failure* failure) noexcept nogil


cdef inline bint engine_try_enter(Engine* engine) noexcept nogil:
    return lock_try(&engine.lock)


cdef inline void engine_enter(Engine* engine) noexcept nogil:
    """pre: the calling thread is not inside. Releases the interpreter lock to wait."""
    if not lock_try(&engine.lock):
        lock_wait_outside(&engine.lock)


cdef inline void engine_leave(Engine* engine) noexcept nogil:
    if engine.late_free_count > 0:
        finish_late_frees(engine)
    lock_give(&engine.lock)


cdef inline bint no_thread_can_enter(Engine* engine) noexcept nogil:
    """Whether no thread can enter without the interpreter lock, which the caller holds throughout.

    That holds if there are no C entry points, and no thread is inside, waits without that lock, or is about to come
    back.
    """
    return engine.interpreter_guards and engine.outside == 0 and allotment_lock_is_unused(&engine.lock.word)


cdef inline bint interpreter_lock_suffices(Engine* engine) noexcept nogil:
    """Whether the interpreter lock, which the caller holds throughout, suffices as a guard for a short visit.

    It does while no thread can enter without it, and the engine has no user function to call, which could let another
    thread run.
    """
    return no_thread_can_enter(engine) and nobody_is_told(engine)


cdef inline bint nobody_is_told(const Engine* engine) noexcept nogil:
    """Whether the trace has no user function to call."""
    return engine.trace.tracker == NULL and engine.trace.relay == NULL


cdef inline bint engine_is_inside(Engine* engine) noexcept nogil:
    return lock_is_mine(&engine.lock)


cdef inline bint needs_no_calls(const Engine* engine) noexcept nogil:
    """Whether a request that hits the cache is served without calling the device or foreign code."""
    return not (anything_waits(engine) and begins_with_device(engine)) and engine.impure_routes == 0


cdef inline bint begins_with_device(const Engine* engine) noexcept nogil:
    """Whether a request asks the device about waiting blocks. pre: no route calls the device or foreign code"""
    return engine.routes == NULL or engine.rules.only_captures_defer or engine.tuning.stream_reuse


cdef Block* serve_slow_path(Engine* engine, Request* request) noexcept nogil


cdef inline void request_begin(Request* request) noexcept nogil:
    request.failure.reason = NO_FAILURE
    request.capturing = request.is_fresh = False
    request.given_back = -1


cdef inline bint complete_finished(Engine* engine, Request* request) noexcept nogil:
    """Poll waiting blocks at the start of a request. pre: nothing is routed"""
    return not anything_waits(engine) or poll_events(engine, request.context, &request.failure)


cdef inline size_t what_is_unusual(const Engine* engine) noexcept nogil:
    """Return 0 if only free memory of the default pool matters to a request, and its size is rounded simply.

    The conditions are flags or pointers, and nearly always 0: testing their union takes one branch.
    """
    cdef int flags = (engine.slow_path_reasons | engine.trace.on | engine.uncached | engine.limited
                      | engine.tuning.divided
                      | engine.tuning.expandable)
    return <size_t> engine.first_waiting | <size_t> engine.first_deferred | <size_t> flags


cdef inline Block* serve_ordinary(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil:
    """Return an allocated block if the request is an ordinary one and hits; otherwise NULL, without a change.

    The hottest callers try this before they fill in a `Request` for `serve_from_cache`, which does the rest. pre: size
    > 0
    """
    cdef size_t unusual = what_is_unusual(engine)
    cdef Block* block
    if (unusual | <size_t> engine.defaults.large.arena) != 0:
        if unusual != 0 or engine.defaults.placement.hit_last_freed == NULL:
            return NULL
        return engine.defaults.placement.hit_last_freed(engine, size, stream, context)
    block = hit_last_freed(engine, size, stream, context)
    return block if block != NULL else hit_on_free_list(engine, size, stream, context)


cdef inline Block* serve_from_cache(Engine* engine, Request* request) noexcept nogil:
    """Return an allocated block without calling the device; NULL with NO_FAILURE for a miss. pre: size > 0"""
    request_begin(request)
    if engine.slow_path_reasons != 0:
        return serve_slow_path(engine, request)
    if not complete_finished(engine, request):
        return NULL
    return serve_from_pool(engine, request, &engine.defaults)


cdef inline Block* serve_from_pool(Engine* engine, Request* request, Pool* pool) noexcept nogil:
    """The rest of `serve_from_cache` once the pool is known."""
    cdef StreamRecord* stream
    cdef Half* half
    request.rounded = round_size(&engine.tuning, request.size)
    stream = stream_for(engine, request.stream)
    if stream == NULL:
        host_memory_failed(&request.failure)
        return NULL
    half = half_for_size(pool, request.rounded)
    if half.arena != NULL:
        return serve_from_arena(engine, request, pool, stream)
    request.free_list = free_list_for(engine, half, stream)
    if request.free_list == NULL:
        host_memory_failed(&request.failure)
        return NULL
    return hit_free_list(engine, request)


cdef inline Block* serve(Engine* engine, Request* request) noexcept nogil:
    """Serve a request from beginning to end; NULL with the reason in request.failure. pre: size > 0"""
    cdef Block* block = serve_from_cache(engine, request)
    if block == NULL and request.failure.reason == NO_FAILURE:
        return serve_missed(engine, request)
    return block


cdef inline void free_at_once_inline(Engine* engine, Block* block, uint32_t context) noexcept nogil:
    """Free a block that no other stream uses: `free_at_once`, with PyTorch's placement inlined."""
    if block.free_list.half.arena != NULL or engine.trace.on:
        if engine.trace.on:
            free_at_once(engine, block, context)
        else:
            count_free_requested(engine, block)
            complete_free(engine, block, context)
        return
    count_free_requested(engine, block)
    free_to_list_untraced(engine, block)
