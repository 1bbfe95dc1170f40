from libc.stdint cimport int32_t, uint32_t, uint64_t

from allotment._core.contract.table cimport NOT_READY, OK, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t, event_t
from allotment._core.mechanism.capturing cimport capture_of
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.streams cimport event_give, event_take
from allotment._core.model.model cimport Engine, Failure, PendingEvent, StreamRecord
from allotment._core.placement.dense.clocks cimport is_past
from allotment._core.placement.dense.structures cimport CLOCK_STREAMS, Arena, Clock, Probe
from allotment._core.tools.arrays cimport make_room_for


cdef void clock_note(Clock* clock, uint32_t stream, uint64_t moment) noexcept nogil:
    """`stream` freed some of these bytes at a moment."""
    cdef int32_t i
    cdef int32_t oldest = 0
    for i in range(clock.count):
        if clock.streams[i] == stream:
            clock.moments[i] = max(clock.moments[i], moment)
            return
        if clock.moments[i] < clock.moments[oldest]:
            oldest = i
    if clock.count < CLOCK_STREAMS:
        i = clock.count
        clock.count += 1
    elif moment < clock.moments[oldest]:
        clock.everyone = max(clock.everyone, moment)
        return
    else:
        clock.everyone = max(clock.everyone, clock.moments[oldest])
        i = oldest
    clock.streams[i] = stream
    clock.moments[i] = moment


cdef void clock_join(Clock* clock, const Clock* other) noexcept nogil:
    cdef int32_t i
    for i in range(other.count):
        clock_note(clock, other.streams[i], other.moments[i])
    clock.everyone = max(clock.everyone, other.everyone)


cdef inline bint is_behind(const StreamRecord* stream, const StreamRecord* other, uint64_t moment) noexcept nogil:
    if stream == other or moment <= other.done:
        return True
    return other.index < stream.synced_room and moment <= stream.synced[other.index]


cdef inline bint owes(const Clock* clock, const StreamRecord* stream, const StreamRecord* other) noexcept nogil:
    """Whether the clock holds something of `other` that `stream` is not ordered after."""
    cdef int32_t i
    for i in range(clock.count):
        if clock.streams[i] == other.index and not is_behind(stream, other, clock.moments[i]):
            return True
    return clock.everyone != 0 and not is_behind(stream, other, min(clock.everyone, other.latest))


cdef bint clock_covers_slowly(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil:
    cdef StreamRecord* other = engine.known_streams
    if engine.table.event_record == NULL:
        return True             # a device whose streams are always finished
    while other != NULL:
        if owes(clock, stream, other):
            return False
        other = other.next_known
    return True


cdef bint clock_is_over(Engine* engine, const Clock* clock) noexcept nogil:
    """Whether everything that the clock holds was seen finished."""
    cdef StreamRecord* other = engine.known_streams
    cdef int32_t i
    if engine.table.event_record == NULL:
        return True
    while other != NULL:
        if clock.everyone != 0 and min(clock.everyone, other.latest) > other.done:
            return False
        for i in range(clock.count):
            if clock.streams[i] == other.index and clock.moments[i] > other.done:
                return False
        other = other.next_known
    return True


cdef bint synced_reserve(Engine* engine, StreamRecord* stream) noexcept nogil:
    """Room to note what `stream` is ordered after, for every stream that is known."""
    cdef size_t had = stream.synced_room
    cdef size_t i
    if had >= engine.stream_count:
        return True
    if not make_room_for(<void**> &stream.synced, &stream.synced_room, engine.stream_count, sizeof(uint64_t)):
        return False
    for i in range(had, stream.synced_room):
        stream.synced[i] = 0
    return True


cdef bint may_record_on(Engine* engine, const StreamRecord* stream, Failure* failure) noexcept nogil:
    """Whether an event of a stream tells of work that runs: in a capture it would be a part of the graph."""
    cdef capture_t capture = 0
    if not capture_of(engine, stream.handle, &capture, failure):
        return False
    return True if capture == 0 else device_failed(failure, NOT_READY, b"event_record")


cdef bint order_after(Engine* engine, StreamRecord* stream, StreamRecord* other, Failure* failure) noexcept nogil:
    """Make `stream` wait, on the device, for everything submitted to `other` so far."""
    cdef DeviceTable* table = engine.table
    cdef event_t event
    cdef status_t status
    if not (may_record_on(engine, other, failure) and event_take(engine, &event, failure)):
        return False
    status = table.event_record(table.self, event, other.handle)
    if status != OK:
        event_give(engine, event)
        return device_failed(failure, status, b"event_record")
    status = table.stream_wait(table.self, stream.handle, event)
    event_give(engine, event)
    if status != OK:
        return device_failed(failure, status, b"stream_wait")
    stream.synced[other.index] = engine.moment
    return True


cdef bint order_after_clock(Arena* arena, StreamRecord* stream, const Clock* clock, Failure* failure) noexcept nogil:
    """Make `stream` wait for all that a clock holds. What was waited for before a refusal stays waited for."""
    cdef Engine* engine = arena.engine
    cdef StreamRecord* other = engine.known_streams
    cdef bint waited = False
    if not synced_reserve(engine, stream):
        return host_memory_failed(failure)
    while other != NULL:
        if owes(clock, stream, other):
            if not order_after(engine, stream, other, failure):
                return False
            waited = True
        other = other.next_known
    arena.counts.waits += waited
    return True


cdef bint wait_for_pending(Engine* engine, StreamRecord* stream, const StreamRecord* user,
                           const PendingEvent* pending) noexcept nogil:
    """Make `stream` wait, on the device, for an event of `user` that a block waits for. pre: synced_reserve"""
    if user != stream:
        if engine.table.stream_wait(engine.table.self, stream.handle, pending.event) != OK:
            return False
        stream.synced[user.index] = max(stream.synced[user.index], pending.moment)
    return True


# --- how far streams have come ----------------------------------------------------------------------------------------

cdef bint all_are_past(Engine* engine, uint64_t moment) noexcept nogil:
    """Whether every stream was seen finished with what it had at a moment."""
    cdef StreamRecord* stream = engine.known_streams
    while stream != NULL:
        if not is_past(engine, stream, moment):
            return False
        stream = stream.next_known
    return True


cdef void note_all_past(Engine* engine, uint64_t moment) noexcept nogil:
    """Every stream is finished with what it had at a moment."""
    cdef StreamRecord* stream = engine.known_streams
    while stream != NULL:
        stream.done = max(stream.done, moment)
        stream = stream.next_known


cdef void look_at_probe(Engine* engine, StreamRecord* stream, Probe* probe) noexcept nogil:
    cdef status_t status = engine.table.event_query(engine.table.self, probe.event)
    if status == NOT_READY:
        return
    if status == OK:
        stream.done = max(stream.done, probe.moment)
    event_give(engine, probe.event)
    probe.moment = 0


cdef void ask_stream(Arena* arena, StreamRecord* stream, uint64_t moment) noexcept nogil:
    cdef Engine* engine = arena.engine
    cdef Probe* probe = &arena.probes[stream.index]
    cdef Failure failure
    if probe.moment != 0:
        look_at_probe(engine, stream, probe)
    if probe.moment != 0 or is_past(engine, stream, moment):
        return
    if not (may_record_on(engine, stream, &failure) and event_take(engine, &probe.event, &failure)):
        return
    if engine.table.event_record(engine.table.self, probe.event, stream.handle) != OK:
        event_give(engine, probe.event)
        return
    probe.moment = max(engine.moment, <uint64_t> 1)
    look_at_probe(engine, stream, probe)


cdef void ask_streams(Arena* arena, uint64_t moment) noexcept nogil:
    """Ask those that were not seen finished with what they had at a moment.

    With an event now, or a look at an earlier one. What the device refuses is not known. pre: not inside a capture
    """
    cdef StreamRecord* stream = arena.engine.known_streams
    if not make_room_for(<void**> &arena.probes, &arena.probe_room, arena.engine.stream_count, sizeof(Probe)):
        return
    while arena.probe_count < arena.engine.stream_count:
        arena.probes[arena.probe_count].moment = 0
        arena.probe_count += 1
    while stream != NULL:
        if not is_past(arena.engine, stream, moment):
            ask_stream(arena, stream, moment)
        stream = stream.next_known


cdef void probes_clear(Arena* arena) noexcept nogil:
    cdef size_t i
    for i in range(arena.probe_count):
        if arena.probes[i].moment != 0:
            event_give(arena.engine, arena.probes[i].event)
    arena.probe_count = 0
