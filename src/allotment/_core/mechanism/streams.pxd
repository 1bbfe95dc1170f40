"""Which streams still use a block, and when its free takes effect.

    free(block)
       ├─ no other stream used it ───────────────────────────────> free now
       ├─ others did ──────────────> an event on each of them ───> free when all have been seen finished
       └─ others did, in a capture > deferred, no event may be touched ──> settled by the next request that is not
                                                                          inside one, or inside the same capture,
                                                                          where its graph proves that it is safe

`capturing` decides who is inside a capture. Every malloc that is not inside one polls events first, the oldest of each
stream first. A slow event holds back those behind it on its stream, but no other stream. Where PyTorch has no defined
order (queues, deferred blocks), the order here is that of insertion.

A step that can fail (recording an event) comes before the change that depends on it. After a failure the block is where
it was, and the caller can repeat the call.
"""

from libc.stdint cimport uint32_t, uint64_t

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
    """Return the record of a stream, creating it on first use; NULL if host memory is short."""
    if engine.recent_stream != NULL and engine.recent_stream.handle == handle:
        return engine.recent_stream
    return stream_make(engine, handle)


cdef inline uint64_t next_moment(Engine* engine, StreamRecord* stream) noexcept nogil:
    """Return the moment of a free or an event of a stream, by the engine's clock."""
    if stream.latest <= engine.joined:
        stream.next_active = engine.first_active
        engine.first_active = stream
    engine.moment += 1
    stream.latest = engine.moment
    return engine.moment


cdef inline bint is_destroyed_stream(const Failure* failure) noexcept nogil:
    """Whether an event was refused because its stream is destroyed.

    Then the engine can only synchronize the device.
    """
    return failure.reason == FAILED_DEVICE and failure.status == INVALID


cdef inline bint anything_waits(const Engine* engine) noexcept nogil:
    return engine.first_waiting != NULL or engine.first_deferred != NULL
