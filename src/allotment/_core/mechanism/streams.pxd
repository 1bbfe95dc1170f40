"""Which streams still use a block, and the moment its free becomes real.

    free(block)
       ├─ no other stream used it ───────────────────────────────> free now
       ├─ others did ──────────────> an event on each of them ───> free when all have been seen finished
       └─ others did, in a capture > deferred, no event may be touched ──> settled by the next request that is not
                                                                          inside one, or inside the same capture,
                                                                          where its graph proves that it is safe

Who is inside a capture is for `captures` to say. Events are polled at the start of every malloc that is not, the
oldest of each stream first; a slow one holds back those behind it on its stream, and no other stream. Everything
unordered upstream (queues, deferred blocks) is in order of insertion here.

A step that can fail (an event that cannot be recorded) comes before the change it is for: the block is
then where it was, and the call can be repeated.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport INVALID
from allotment._core.contract.types cimport capture_t, event_t, stream_t
from allotment._core.model.model cimport (
    FAILED_DEVICE, Block, Deferred, Engine, Failure, PendingEvent, Pool, StreamRecord)

cdef StreamRecord* stream_make(Engine* engine, stream_t handle) noexcept nogil
cdef bint use_record(Engine* engine, Block* block, StreamRecord* stream, bint in_capture) noexcept nogil
cdef void uses_drop(Engine* engine, Block* block) noexcept nogil
cdef bint event_take(Engine* engine, event_t* event, Failure* failure) noexcept nogil
cdef void event_give(Engine* engine, event_t event) noexcept nogil
cdef void queue_remove(Engine* engine, StreamRecord* stream, PendingEvent* pending) noexcept nogil
cdef void drop_empty_queues(Engine* engine) noexcept nogil
cdef bint events_attach(Engine* engine, Block* block, Failure* failure) noexcept nogil
cdef void deferral_init(Deferred* deferred, Block* block) noexcept nogil
cdef void defer(Engine* engine, Deferred* deferred) noexcept nogil
cdef void undefer(Engine* engine, Deferred* previous, Deferred* deferred) noexcept nogil
cdef void defer_unprepared(Engine* engine, Block* block) noexcept nogil
cdef bint settle_deferred(Engine* engine, Pool* only, uint32_t context, Failure* failure) noexcept nogil
cdef bint poll_events(Engine* engine, uint32_t context, Failure* failure) noexcept nogil
cdef bint wait_events(Engine* engine, Pool* only, uint32_t context, Failure* failure) noexcept nogil
cdef bint wait_for_stream(Engine* engine, stream_t stream, Failure* failure) noexcept nogil
cdef bint wait_unless_captured(Engine* engine, stream_t stream, capture_t* capture, Failure* failure) noexcept nogil
cdef bint wait_for_everything(Engine* engine) noexcept nogil
cdef void forget_idle_streams(Engine* engine) noexcept nogil
cdef void streams_clear(Engine* engine) noexcept nogil


cdef inline StreamRecord* stream_for(Engine* engine, stream_t handle) noexcept nogil:
    """The record of a stream, made at first sight; NULL without host memory for it."""
    if engine.recent_stream != NULL and engine.recent_stream.handle == handle:
        return engine.recent_stream
    return stream_make(engine, handle)


cdef inline bint is_destroyed_stream(const Failure* failure) noexcept nogil:
    """Whether an event was refused because its stream is no more. Then there is nothing left but to wait for it."""
    return failure.reason == FAILED_DEVICE and failure.status == INVALID


cdef inline bint anything_waits(const Engine* engine) noexcept nogil:
    return engine.first_waiting != NULL or engine.first_deferred != NULL
