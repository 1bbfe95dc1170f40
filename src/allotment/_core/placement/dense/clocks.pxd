"""The order of streams: whether a stream may use memory that others have freed.

The engine's clock counts frees and recorded events. A pair (a, moment) of a tile's clock is ordered before stream s in
any of these cases:

    a is s
    moment <= a.done                the stream a was seen finished with it
    moment <= s.waited[a].moment    s waited for an event of a
    moment <= s.joined              s waited for every stream

Not every pair of streams has its order stored. A stream remembers WAITED_ROOM waits; with no more streams than that it
remembers all waits, with more it may repeat some. *Joins* cover the rest. A stream that has to wait for all others
waits for the streams that freed anything since the last join, and then records an event. That event covers what all
streams did before. The next stream that has to wait for all others up to that moment waits only for this event.

Cost, with n streams: deciding whether a stream may have a tile takes O(1) time, and each stream takes O(1) memory.
Waiting for a tile takes one event for each stream in its clock (at most CLOCK_STREAMS), and one for the last join. If
the tile's moment for all streams is newer than the last join, the wait is a join. A join takes one event for each
stream that was active since the last one, so a free pays for at most one such event, however many streams exist. Only
asking for the progress of all streams (`see_past`, `ask_streams`, `note_all_past`) is O(n). That happens when memory is
released, when it is short, and when a chunk has too many views.

The code that created a stream may destroy it while the arena keeps memory that it freed, and some devices do not notice
the use of a destroyed stream (IS_UNCHECKED). There no event is recorded on such a stream later (`may_use_later`): its
memory serves other streams only after a synchronization of the device, unless the code promised that its streams last,
or the device created the stream itself and keeps it.

A wait is always for work that was submitted before, so the graph of waits follows the order of submission and cannot
deadlock. Inside a capture the code records, queries and awaits no event; it also records none on a stream that is in a
capture.
"""

from libc.stdint cimport uint64_t

from allotment._core.model.model cimport Engine, Failure, PendingEvent, StreamRecord
from allotment._core.placement.dense.structures cimport Arena, Clock

cdef void clock_note_slowly(Clock* clock, StreamRecord* stream, uint64_t moment) noexcept nogil
cdef void clock_join_slowly(Clock* clock, const Clock* other) noexcept nogil
cdef bint clock_covers_slowly(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil
cdef bint clock_is_over(const Engine* engine, const Clock* clock) noexcept nogil
cdef bint may_use_later(const Engine* engine, const StreamRecord* stream) noexcept nogil
cdef bint waited_reserve(StreamRecord* stream) noexcept nogil
cdef bint order_after_clock(Arena* arena, StreamRecord* stream, const Clock* clock, Failure* failure) noexcept nogil
cdef bint wait_for_pending(Engine* engine, StreamRecord* stream, const StreamRecord* user,
                           const PendingEvent* pending) noexcept nogil
cdef void see_past(Engine* engine) noexcept nogil
cdef void note_all_past(Engine* engine, uint64_t moment) noexcept nogil
cdef void ask_streams(Arena* arena, uint64_t moment) noexcept nogil
cdef void probes_clear(Arena* arena) noexcept nogil


cdef inline bint is_past(const Engine* engine, const StreamRecord* stream, uint64_t moment) noexcept nogil:
    """Whether a stream was seen finished with everything it had submitted at a moment."""
    return min(moment, stream.latest) <= stream.done or engine.table.event_record == NULL


cdef inline void clock_clear(Clock* clock) noexcept nogil:
    clock.count = 0
    clock.everyone = 0


cdef inline void clock_note(Clock* clock, StreamRecord* stream, uint64_t moment) noexcept nogil:
    """Record that `stream` freed some of these bytes at a moment. Mostly it is the first of the clock's streams."""
    if clock.count == 0:
        clock.count = 1
        clock.streams[0] = stream
        clock.moments[0] = moment
    elif clock.streams[0] == stream:
        clock.moments[0] = max(clock.moments[0], moment)
    else:
        clock_note_slowly(clock, stream, moment)


cdef inline void clock_join(Clock* clock, const Clock* other) noexcept nogil:
    if other.count == 1 and other.everyone == 0:
        clock_note(clock, other.streams[0], other.moments[0])
    else:
        clock_join_slowly(clock, other)


cdef inline bint is_only_of(const Clock* clock, const StreamRecord* stream) noexcept nogil:
    """Whether the clock contains no other stream than this one."""
    return clock.everyone == 0 and (clock.count == 0 or clock.count == 1 and clock.streams[0] == stream)


cdef inline bint clock_covers(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil:
    """Whether `stream` is ordered after everything in the clock. Mostly the clock contains only that stream."""
    return is_only_of(clock, stream) or clock_covers_slowly(engine, clock, stream)
