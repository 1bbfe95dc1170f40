from libc.stdint cimport int32_t, uint64_t
from libc.stdlib cimport calloc

from allotment._core.contract.table cimport IS_UNCHECKED, NOT_READY, OK, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t, event_t
from allotment._core.mechanism.capturing cimport capture_of
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.streams cimport event_give, event_take
from allotment._core.model.model cimport WAITED_ROOM, Engine, Failure, PendingEvent, StreamRecord, Waited
from allotment._core.placement.dense.clocks cimport clock_note, is_past
from allotment._core.placement.dense.structures cimport CLOCK_STREAMS, Arena, Clock, Probe
from allotment._core.tools.arrays cimport make_room_for


cdef void clock_note_slowly(Clock* clock, StreamRecord* stream, uint64_t moment) noexcept nogil:
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


cdef void clock_join_slowly(Clock* clock, const Clock* other) noexcept nogil:
    cdef int32_t i
    for i in range(other.count):
        clock_note(clock, other.streams[i], other.moments[i])
    clock.everyone = max(clock.everyone, other.everyone)


cdef inline bint is_behind(const StreamRecord* stream, const StreamRecord* other, uint64_t moment) noexcept nogil:
    """Whether `stream` is ordered after everything that `other` had submitted at a moment."""
    cdef const Waited* waited
    if stream == other or moment <= other.done or moment <= stream.joined:
        return True
    if moment > stream.waited_latest:
        return False
    waited = &stream.waited[other.index % WAITED_ROOM]
    return waited.index == other.index and moment <= waited.moment


cdef inline bint all_are_behind(const Engine* engine, const StreamRecord* stream, uint64_t moment) noexcept nogil:
    """Whether `stream` is known to be ordered after everything that all streams had submitted at a moment."""
    return moment <= stream.joined or moment <= engine.past


cdef bint clock_covers_slowly(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil:
    cdef int32_t i
    if engine.table.event_record == NULL:
        return True             # the device's streams are always finished
    for i in range(clock.count):
        if not is_behind(stream, clock.streams[i], clock.moments[i]):
            return False
    return all_are_behind(engine, stream, clock.everyone)


cdef bint clock_is_over(const Engine* engine, const Clock* clock) noexcept nogil:
    """Whether everything in the clock was seen finished. pre: see_past"""
    cdef int32_t i
    if engine.table.event_record == NULL:
        return True
    for i in range(clock.count):
        if clock.moments[i] > clock.streams[i].done:
            return False
    return clock.everyone <= engine.past


# --- waiting ----------------------------------------------------------------------------------------------------------

cdef bint waited_reserve(StreamRecord* stream) noexcept nogil:
    """Make room to record what `stream` waits for."""
    if stream.waited == NULL:
        stream.waited = <Waited*> calloc(WAITED_ROOM, sizeof(Waited))
    return stream.waited != NULL


cdef void note_wait(StreamRecord* stream, const StreamRecord* other, uint64_t moment) noexcept nogil:
    """Record that `stream` is ordered after what `other` had submitted at a moment. pre: waited_reserve"""
    cdef Waited* waited = &stream.waited[other.index % WAITED_ROOM]
    if waited.index != other.index or waited.moment < moment:
        waited.index = other.index
        waited.moment = moment
        stream.waited_latest = max(stream.waited_latest, moment)


cdef bint may_use_later(const Engine* engine, const StreamRecord* stream) noexcept nogil:
    """Whether the handle of a stream may be used after the call that it was given to.

    False if the code that created the stream may have destroyed it since, and the device does not notice that.
    """
    cdef const Arena* arena = <const Arena*> engine.defaults.large.arena
    cdef const DeviceTable* table = engine.table
    return (stream.handle == 0 or not table.capabilities & IS_UNCHECKED
            or arena != NULL and arena.streams_last and not arena.streams_end
            or table.keeps_stream != NULL and table.keeps_stream(table.self, stream.handle))


cdef bint may_record_on(Engine* engine, const StreamRecord* stream, Failure* failure) noexcept nogil:
    """Whether an event recorded on a stream tells about running work; in a capture it would be part of the graph."""
    cdef capture_t capture = 0
    if not capture_of(engine, stream.handle, &capture, failure):
        return False
    return True if capture == 0 else device_failed(failure, NOT_READY, b"event_record")


cdef bint order_after(Engine* engine, StreamRecord* stream, const StreamRecord* other, Failure* failure) noexcept nogil:
    """Make `stream` wait, on the device, for everything submitted to `other` so far."""
    cdef DeviceTable* table = engine.table
    cdef event_t event
    cdef status_t status
    if not may_use_later(engine, other):
        return device_failed(failure, NOT_READY, b"event_record")
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
    note_wait(stream, other, engine.moment)
    return True


cdef void keep_join(Engine* engine, const StreamRecord* stream, uint64_t moment) noexcept nogil:
    """Record one event that covers what every stream had submitted at a moment. If the device refuses, keep the old
    event.

    pre: `stream` is ordered after all of it
    """
    cdef Failure unused
    cdef event_t event
    if not (may_record_on(engine, stream, &unused) and event_take(engine, &event, &unused)):
        return
    if engine.table.event_record(engine.table.self, event, stream.handle) != OK:
        event_give(engine, event)
        return
    if engine.joined != 0:
        event_give(engine, engine.join)
    engine.join = event
    engine.joined = moment
    engine.first_active = NULL


cdef bint join_active(Engine* engine, StreamRecord* stream, Failure* failure) noexcept nogil:
    """Make `stream` wait for every stream that was active since the last join. pre: it is ordered after that join"""
    cdef uint64_t moment = engine.moment
    cdef StreamRecord** link = &engine.first_active
    cdef StreamRecord* other
    while link[0] != NULL:
        other = link[0]
        if not (is_behind(stream, other, other.latest) or order_after(engine, stream, other, failure)):
            # The next attempt begins with this stream: until it can be waited for, no other wait helps.
            link[0] = other.next_active
            other.next_active = engine.first_active
            engine.first_active = other
            return False
        link = &other.next_active
    stream.joined = moment
    keep_join(engine, stream, moment)
    return True


cdef bint order_after_all(Engine* engine, StreamRecord* stream, uint64_t moment, Failure* failure) noexcept nogil:
    """Make `stream` wait, on the device, for what every stream had submitted at a moment."""
    cdef status_t status
    if stream.joined < engine.joined:
        status = engine.table.stream_wait(engine.table.self, stream.handle, engine.join)
        if status != OK:
            return device_failed(failure, status, b"stream_wait")
        stream.joined = engine.joined
    return moment <= stream.joined or join_active(engine, stream, failure)


cdef bint order_after_clock(Arena* arena, StreamRecord* stream, const Clock* clock, Failure* failure) noexcept nogil:
    """Make `stream` wait for everything in a clock. Waits made before a refusal stay in effect."""
    cdef Engine* engine = arena.engine
    cdef bint waited = False
    cdef int32_t i
    if not waited_reserve(stream):
        return host_memory_failed(failure)
    if not all_are_behind(engine, stream, clock.everyone):
        if not order_after_all(engine, stream, clock.everyone, failure):
            return False
        waited = True
    for i in range(clock.count):
        if not is_behind(stream, clock.streams[i], clock.moments[i]):
            if not order_after(engine, stream, clock.streams[i], failure):
                return False
            waited = True
    arena.counts.waits += waited
    return True


cdef bint wait_for_pending(Engine* engine, StreamRecord* stream, const StreamRecord* user,
                           const PendingEvent* pending) noexcept nogil:
    """Make `stream` wait, on the device, for an event of `user` that a block waits for. pre: waited_reserve"""
    if user != stream:
        if engine.table.stream_wait(engine.table.self, stream.handle, pending.event) != OK:
            return False
        note_wait(stream, user, pending.moment)
    return True


# --- progress of streams ----------------------------------------------------------------------------------------------

cdef void see_past(Engine* engine) noexcept nogil:
    """Update `engine.past` from what is known of each stream. Linear in the number of streams."""
    cdef StreamRecord* stream = engine.known_streams
    cdef uint64_t past = engine.moment
    while stream != NULL:
        if not is_past(engine, stream, past):
            past = stream.done
        stream = stream.next_known
    engine.past = max(engine.past, past)


cdef void note_all_past(Engine* engine, uint64_t moment) noexcept nogil:
    """Record that every stream is finished with what it had submitted at a moment."""
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
    """Ask the streams not seen finished with what they had submitted at a moment, by a new or an earlier event.

    If the device refuses, or a stream may be destroyed, the progress stays unknown. pre: not inside a capture
    """
    cdef StreamRecord* stream = arena.engine.known_streams
    if not make_room_for(<void**> &arena.probes, &arena.probe_room, arena.engine.stream_count, sizeof(Probe)):
        return
    while arena.probe_count < arena.engine.stream_count:
        arena.probes[arena.probe_count].moment = 0
        arena.probe_count += 1
    while stream != NULL:
        if not is_past(arena.engine, stream, moment) and may_use_later(arena.engine, stream):
            ask_stream(arena, stream, moment)
        stream = stream.next_known


cdef void probes_clear(Arena* arena) noexcept nogil:
    cdef size_t i
    for i in range(arena.probe_count):
        if arena.probes[i].moment != 0:
            event_give(arena.engine, arena.probes[i].event)
    arena.probe_count = 0
