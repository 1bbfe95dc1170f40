from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from allotment._core.contract.current cimport current_stream
from allotment._core.contract.table cimport INVALID, IS_UNCHECKED, NOT_READY, OK, DeviceTable, status_t
from allotment._core.contract.types cimport capture_t, event_t, stream_t
from allotment._core.mechanism.block cimport complete_free
from allotment._core.mechanism.capturing cimport capture_of, is_inside_capture, is_used_in_capture
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.mechanism.streams cimport next_moment
from allotment._core.model.model cimport (
    DEFERRED, NO_FAILURE, Block, Deferred, Engine, Failure, PendingEvent, Pool, StreamRecord, StreamUse)
from allotment._core.tools.pointer_map cimport map_get, map_pop, map_put, map_reserve
from allotment._core.tools.slab cimport slab_give, slab_reserve, slab_take


cdef StreamRecord* stream_make(Engine* engine, stream_t handle) noexcept nogil:
    cdef StreamRecord* stream = <StreamRecord*> map_get(&engine.streams, handle + 1)
    if stream == NULL:
        if not map_reserve(&engine.streams):
            return NULL
        stream = <StreamRecord*> calloc(1, sizeof(StreamRecord))
        if stream == NULL:
            return NULL
        stream.handle = handle
        stream.index = <uint32_t> engine.stream_count
        engine.stream_count += 1
        stream.next_known = engine.known_streams
        engine.known_streams = stream
        map_put(&engine.streams, handle + 1, stream)
    engine.recent_stream = stream
    return stream


# --- uses ------------------------------------------------------------------------------------------------

cdef bint use_record(Engine* engine, Block* block, StreamRecord* stream, bint in_capture) noexcept nogil:
    """Record that `stream` uses the block; False if host memory is short."""
    cdef StreamUse** link = &block.uses
    cdef StreamUse* use
    while link[0] != NULL and link[0].stream != stream:
        link = &link[0].next
    use = link[0]
    if use == NULL:
        if not slab_reserve(&engine.use_slab, 1):
            return False
        use = <StreamUse*> slab_take(&engine.use_slab)
        use.next = NULL
        use.stream = stream
        stream.users += 1
        use.in_capture = False
        link[0] = use
    use.in_capture |= in_capture
    return True


cdef void uses_drop(Engine* engine, Block* block) noexcept nogil:
    cdef StreamUse* use
    while block.uses != NULL:
        use = block.uses
        block.uses = use.next
        use.stream.users -= 1
        slab_give(&engine.use_slab, use)


cdef void uses_drop_captured(Engine* engine, Block* block) noexcept nogil:
    """Forget the uses recorded inside a capture, which has ordered them."""
    cdef StreamUse** link = &block.uses
    cdef StreamUse* use
    while link[0] != NULL:
        use = link[0]
        if use.in_capture:
            link[0] = use.next
            use.stream.users -= 1
            slab_give(&engine.use_slab, use)
        else:
            link = &use.next


# --- the event pool: finished events are reused, last in first out -----------------------------------------

cdef bint event_take(Engine* engine, event_t* event, Failure* failure) noexcept nogil:
    cdef status_t status
    cdef size_t room
    cdef event_t* larger
    if engine.spare_event_count > 0:
        engine.spare_event_count -= 1
        event[0] = engine.spare_events[engine.spare_event_count]
        return True
    # Reserve the space for returning the event before creating it, so that the return cannot fail.
    room = engine.spare_event_room + 1
    larger = <event_t*> realloc(engine.spare_events, room * sizeof(event_t))
    if larger == NULL:
        return host_memory_failed(failure)
    engine.spare_events = larger
    status = engine.table.event_create(engine.table.self, event)
    if status != OK:
        return device_failed(failure, status, b"event_create")
    engine.spare_event_room = room
    return True


cdef void event_give(Engine* engine, event_t event) noexcept nogil:
    engine.spare_events[engine.spare_event_count] = event
    engine.spare_event_count += 1


# --- queues of events --------------------------------------------------------------------------------------

cdef void queue_append(Engine* engine, StreamRecord* stream, PendingEvent* pending) noexcept nogil:
    pending.moment = next_moment(engine, stream)
    stream.recorded += 1
    pending.tick = stream.recorded
    pending.next = NULL
    if stream.first != NULL:
        stream.last.next = pending
        stream.last = pending
        return
    stream.first = stream.last = pending
    stream.next_waiting = NULL
    if engine.first_waiting != NULL:
        engine.last_waiting.next_waiting = stream
    else:
        engine.first_waiting = stream
    engine.last_waiting = stream


cdef void queue_remove(Engine* engine, StreamRecord* stream, PendingEvent* pending) noexcept nogil:
    """Stop waiting for an event, anywhere in its queue. pre: drop_empty_queues follows"""
    cdef PendingEvent* previous = NULL
    cdef PendingEvent* other = stream.first
    while other != pending:
        previous = other
        other = other.next
    if previous != NULL:
        previous.next = pending.next
    else:
        stream.first = pending.next
    if pending.next == NULL:
        stream.last = previous
    event_give(engine, pending.event)
    slab_give(&engine.pending_slab, pending)


cdef void drop_empty_queues(Engine* engine) noexcept nogil:
    cdef StreamRecord* stream = engine.first_waiting
    cdef StreamRecord* following
    engine.first_waiting = engine.last_waiting = NULL
    while stream != NULL:
        following = stream.next_waiting
        stream.next_waiting = NULL
        if stream.first != NULL:
            if engine.last_waiting != NULL:
                engine.last_waiting.next_waiting = stream
            else:
                engine.first_waiting = stream
            engine.last_waiting = stream
        stream = following


cdef bint events_attach(Engine* engine, Block* block, Failure* failure) noexcept nogil:
    """Record an event on every stream that uses the block, and queue them.

    Changes nothing on failure. A device whose streams are always finished has no events.
    """
    cdef DeviceTable* table = engine.table
    cdef PendingEvent* made = NULL
    cdef PendingEvent* pending
    cdef StreamUse* use = block.uses
    cdef status_t status
    cdef bint ok = True
    if table.event_record == NULL:
        uses_drop(engine, block)
        return True
    while use != NULL and ok:
        if not slab_reserve(&engine.pending_slab, 1):
            ok = host_memory_failed(failure)
            break
        pending = <PendingEvent*> slab_take(&engine.pending_slab)
        pending.block = block
        ok = event_take(engine, &pending.event, failure)
        if not ok:
            slab_give(&engine.pending_slab, pending)
            break
        pending.next = made
        made = pending
        status = table.event_record(table.self, pending.event, use.stream.handle)
        if status != OK:
            ok = device_failed(failure, status, b"event_record")
        use = use.next
    if not ok:
        while made != NULL:
            pending = made
            made = made.next
            event_give(engine, pending.event)
            slab_give(&engine.pending_slab, pending)
        return False
    # `made` is in reverse order; queues are per stream, so the order affects only that of new queues.
    made = reversed_list(made)
    use = block.uses
    while made != NULL:
        pending = made
        made = made.next
        queue_append(engine, use.stream, pending)
        block.event_count += 1
        use = use.next
    uses_drop(engine, block)
    return True


cdef PendingEvent* reversed_list(PendingEvent* first) noexcept nogil:
    cdef PendingEvent* reverse = NULL
    cdef PendingEvent* following
    while first != NULL:
        following = first.next
        first.next = reverse
        reverse = first
        first = following
    return reverse


cdef void event_done(Engine* engine, StreamRecord* stream, PendingEvent* pending, uint32_t context) noexcept nogil:
    """pre: removed from its queue"""
    cdef Block* block = pending.block
    if pending.tick > stream.finished:
        stream.finished = pending.tick
    if pending.moment > stream.done:
        stream.done = pending.moment
    event_give(engine, pending.event)
    slab_give(&engine.pending_slab, pending)
    block.event_count -= 1
    if block.event_count == 0:
        complete_free(engine, block, context)


cdef bint poll_events(Engine* engine, uint32_t context, Failure* failure) noexcept nogil:
    """Complete the frees whose streams are done. pre: not inside a capture"""
    cdef DeviceTable* table = engine.table
    cdef StreamRecord* stream
    cdef PendingEvent* pending
    cdef status_t status = OK
    if not settle_deferred(engine, NULL, context, failure):
        return False
    stream = engine.first_waiting
    while stream != NULL and status == OK:
        while stream.first != NULL:
            pending = stream.first
            if pending.tick > stream.finished:
                status = table.event_query(table.self, pending.event)
                if status != OK:
                    break
            stream.first = pending.next
            event_done(engine, stream, pending, context)
        if status == NOT_READY:
            status = OK
        stream = stream.next_waiting
    drop_empty_queues(engine)
    if status != OK:
        return device_failed(failure, status, b"event_query")
    return True


cdef bint wait_events(Engine* engine, Pool* only, uint32_t context, Failure* failure) noexcept nogil:
    """Wait for every event (of one pool's blocks) and complete those frees. pre: not inside a capture"""
    cdef StreamRecord* stream
    cdef PendingEvent* pending
    engine.stats.sync_all_streams += 1
    if not settle_deferred(engine, NULL, context, failure):
        return False
    stream = engine.first_waiting
    while stream != NULL:
        stream.awaited = stream.recorded        # events recorded later, during an unlocked section, are not waited for
        stream = stream.next_waiting
    while True:
        pending = complete_until_unfinished(engine, only, context, &stream)
        drop_empty_queues(engine)
        if pending == NULL:
            return True
        if not wait_for_event(engine, stream, pending, failure):
            return False


cdef PendingEvent* complete_until_unfinished(Engine* engine, Pool* only, uint32_t context,
                                             StreamRecord** on) noexcept nogil:
    """Complete frees (of one pool's blocks), stream by stream, up to one whose event was not seen finished yet.

    Returns NULL when no event to wait for is left.
    """
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    cdef PendingEvent* previous
    cdef PendingEvent* following
    while stream != NULL:
        previous = NULL
        pending = stream.first
        while pending != NULL and pending.tick <= stream.awaited:
            following = pending.next
            if only != NULL and pending.block.free_list.half.pool != only:
                previous = pending
            elif pending.tick > stream.finished:
                on[0] = stream
                return pending
            else:
                if previous != NULL:
                    previous.next = following
                else:
                    stream.first = following
                if following == NULL:
                    stream.last = previous
                event_done(engine, stream, pending, context)
            pending = following
        stream = stream.next_waiting
    return NULL


cdef bint wait_for_event(Engine* engine, StreamRecord* stream, PendingEvent* pending,
                         Failure* failure) noexcept nogil:
    """Wait, and note the stream's progress. Has an unlocked section."""
    cdef unlocked_t unlocked
    cdef uint64_t tick = pending.tick
    cdef event_t event = pending.event
    cdef status_t status
    stream.users += 1
    unlocked = begin_unlocked(engine)
    status = engine.table.event_synchronize(engine.table.self, event)
    end_unlocked(engine, unlocked)
    stream.users -= 1
    if status != OK:
        return device_failed(failure, status, b"event_synchronize")
    # If the event serves another block by now, it was seen finished before.
    if tick > stream.finished:
        stream.finished = tick
    return True


# --- deferred frees ----------------------------------------------------------------------------------------

cdef void deferral_init(Deferred* deferred, Block* block) noexcept nogil:
    """Fill in a record that says only that a block waits."""
    deferred.block = block
    deferred.awaited = False
    deferred.capture = 0
    deferred.outside = False
    deferred.marker_count = 0
    deferred.markers = NULL


cdef void defer_unprepared(Engine* engine, Block* block) noexcept nogil:
    """Defer a block's free without calling the device for markers. pre: a record is reserved"""
    cdef Deferred* deferred = <Deferred*> slab_take(&engine.deferred_slab)
    cdef StreamUse* use = block.uses
    cdef bint captured
    cdef Failure failure
    deferral_init(deferred, block)
    if is_inside_capture(engine, 0, &captured, &failure) and not captured:
        while use != NULL:
            use.in_capture = False      # no capture orders this free, so the end of a capture does not either
            use = use.next
    defer(engine, deferred)


cdef void defer(Engine* engine, Deferred* deferred) noexcept nogil:
    deferred.block.withheld = DEFERRED
    deferred.next = NULL
    if engine.first_deferred != NULL:
        engine.last_deferred.next = deferred
    else:
        engine.first_deferred = deferred
    engine.last_deferred = deferred


cdef void undefer(Engine* engine, Deferred* previous, Deferred* deferred) noexcept nogil:
    if previous != NULL:
        previous.next = deferred.next
    else:
        engine.first_deferred = deferred.next
    if engine.last_deferred == deferred:
        engine.last_deferred = previous
    deferred.block.withheld = 0
    free(deferred.markers)
    slab_give(&engine.deferred_slab, deferred)


cdef bint wait_for_users(Engine* engine, Block* block, Failure* failure) noexcept nogil:
    """Wait for every stream that uses a block, and drop these uses. Has an unlocked section."""
    cdef StreamUse* use = block.uses if not wait_for_everything(engine) else NULL
    while use != NULL:
        if not wait_for_stream(engine, use.stream.handle, failure):
            return False
        use = use.next
    uses_drop(engine, block)
    return True


cdef Deferred* before(Engine* engine, const Deferred* deferred) noexcept nogil:
    """Return the previous list entry; NULL for the first."""
    cdef Deferred* previous = NULL
    cdef Deferred* other = engine.first_deferred
    while other != deferred:
        previous = other
        other = other.next
    return previous


cdef bint can_settle(Engine* engine, Deferred* deferred, Pool* only) noexcept nogil:
    cdef Block* block = deferred.block
    if only != NULL and block.free_list.half.pool != only or deferred.outside and is_used_in_capture(engine, block):
        return False
    uses_drop_captured(engine, block)
    return not is_used_in_capture(engine, block)


cdef bint settle_deferred(Engine* engine, Pool* only, uint32_t context, Failure* failure) noexcept nogil:
    """Attach events to the deferred blocks (of one pool), or free those whose uses a capture has all ordered.

    A block used by a stream that is still in a capture cannot have events yet and stays deferred. If the function must
    wait for a destroyed stream, it has an unlocked section; other threads skip that block meanwhile.
    """
    cdef Deferred* deferred = engine.first_deferred
    cdef Deferred* previous = NULL
    cdef Block* block
    cdef bint ok
    while deferred != NULL:
        block = deferred.block
        if deferred.awaited or not can_settle(engine, deferred, only):
            previous = deferred
            deferred = deferred.next
            continue
        if block.uses != NULL and not events_attach(engine, block, failure):
            if not is_destroyed_stream(failure):
                return False
            deferred.awaited = True
            ok = wait_for_users(engine, block, failure)
            deferred.awaited = False
            if not ok:
                return False
            failure.reason = NO_FAILURE
            previous = before(engine, deferred)
        undefer(engine, previous, deferred)
        deferred = previous.next if previous != NULL else engine.first_deferred
        if block.event_count == 0:
            complete_free(engine, block, context)
    return True


cdef bint wait_for_stream(Engine* engine, stream_t stream, Failure* failure) noexcept nogil:
    """Wait for all work of a stream. For a destroyed stream, whose work may still run, synchronize the device.

    Has an unlocked section.
    """
    cdef unlocked_t unlocked
    cdef DeviceTable* table = engine.table
    cdef status_t status
    if table.stream_synchronize == NULL:
        return True
    unlocked = begin_unlocked(engine)
    status = table.stream_synchronize(table.self, stream)
    end_unlocked(engine, unlocked)
    if status == OK:
        return True
    if status == INVALID and wait_for_work_left(engine, stream):
        return True
    if status == INVALID and table.device_synchronize != NULL:
        unlocked = begin_unlocked(engine)
        status = table.device_synchronize(table.self)
        end_unlocked(engine, unlocked)
        return True if status == OK else device_failed(failure, status, b"device_synchronize")
    return device_failed(failure, status, b"stream_synchronize")


cdef bint wait_unless_captured(Engine* engine, stream_t stream, capture_t* capture, Failure* failure) noexcept nogil:
    """Wait for all work of a stream, unless the stream is in a capture, which waiting would break.

    Has an unlocked section.
    """
    capture[0] = 0
    if wait_for_everything(engine):
        return True
    if not capture_of(engine, stream, capture, failure):
        return False
    return capture[0] != 0 or wait_for_stream(engine, stream, failure)


cdef bint wait_for_everything(Engine* engine) noexcept nogil:
    """Synchronize the device where using a stream handle is unsafe; False if that was not done. Has an unlocked
    section.

    The code that created a stream may have destroyed it since. While anything is known to be captured, the function
    does nothing: synchronizing would break the capture.
    """
    cdef unlocked_t unlocked
    cdef capture_t capture
    cdef Failure failure
    cdef status_t status
    cdef DeviceTable* table = engine.table
    if not table.capabilities & IS_UNCHECKED or engine.routes != NULL:
        return False
    if not capture_of(engine, current_stream(table.serial, 0), &capture, &failure) or capture != 0:
        return False
    unlocked = begin_unlocked(engine)
    status = table.device_synchronize(table.self)
    end_unlocked(engine, unlocked)
    return status == OK


cdef bint wait_for_work_left(Engine* engine, stream_t stream) noexcept nogil:
    """Wait for a destroyed stream's remaining work, if the device has events for that, without breaking captures."""
    cdef unlocked_t unlocked
    cdef DeviceTable* table = engine.table
    cdef Failure failure
    cdef event_t event
    cdef bint done
    if table.event_record == NULL or not event_take(engine, &event, &failure):
        return False
    done = table.event_record(table.self, event, stream) == OK
    if done:
        unlocked = begin_unlocked(engine)
        done = table.event_synchronize(table.self, event) == OK
        end_unlocked(engine, unlocked)
    event_give(engine, event)
    return done


cdef inline bint is_idle_stream(const StreamRecord* stream) noexcept nogil:
    return stream.users == 0 and stream.first == NULL and stream.range_bytes == 0


cdef void forget_idle_streams(Engine* engine) noexcept nogil:
    """Delete the records of streams that nothing refers to. pre: no pool keeps clocks"""
    cdef StreamRecord** link = &engine.first_active
    cdef StreamRecord* stream
    engine.recent_stream = NULL
    while link[0] != NULL:
        if is_idle_stream(link[0]):
            link[0] = link[0].next_active
        else:
            link = &link[0].next_active
    link = &engine.known_streams
    while link[0] != NULL:
        stream = link[0]
        if is_idle_stream(stream):
            link[0] = stream.next_known
            map_pop(&engine.streams, stream.handle + 1)
            free(stream.waited)
            free(stream)
        else:
            link = &stream.next_known


cdef void streams_clear(Engine* engine) noexcept nogil:
    """Delete all stream records. pre: nothing waits"""
    cdef StreamRecord* stream
    while engine.known_streams != NULL:
        stream = engine.known_streams
        engine.known_streams = stream.next_known
        free(stream.waited)
        free(stream)
    if engine.joined != 0:
        event_give(engine, engine.join)
    engine.joined = 0
    engine.first_active = NULL
    while engine.spare_event_count > 0:
        engine.spare_event_count -= 1
        engine.table.event_destroy(engine.table.self, engine.spare_events[engine.spare_event_count])
    free(engine.spare_events)
    engine.spare_events = NULL
    engine.recent_stream = NULL
