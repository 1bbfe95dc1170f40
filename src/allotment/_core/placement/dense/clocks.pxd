"""Who is ordered after whom: whether a stream may have memory that others have freed.

The engine's clock counts frees and recorded events. For a pair of streams, `synced[s][a]` is the moment up to which
everything on `a` comes before what `s` does next, because s was made to wait for an event of a; `a.done` is the
moment up to which a was seen finished. A pair (a, moment) of a tile's clock is behind stream s if a is s itself, or
if one of those two has reached it.

A wait is only ever for work that was submitted before, so the graph of waits follows the order of submission: there
is no deadlock. Inside a capture no event is recorded, asked for or waited for, and none is recorded on a stream that is
in one.
"""

from libc.stdint cimport uint32_t, uint64_t

from allotment._core.model.model cimport Engine, Failure, PendingEvent, StreamRecord
from allotment._core.placement.dense.structures cimport Arena, Clock

cdef void clock_note(Clock* clock, uint32_t stream, uint64_t moment) noexcept nogil
cdef void clock_join(Clock* clock, const Clock* other) noexcept nogil
cdef bint clock_covers_slowly(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil
cdef bint clock_is_over(Engine* engine, const Clock* clock) noexcept nogil
cdef bint synced_reserve(Engine* engine, StreamRecord* stream) noexcept nogil
cdef bint order_after_clock(Arena* arena, StreamRecord* stream, const Clock* clock, Failure* failure) noexcept nogil
cdef bint wait_for_pending(Engine* engine, StreamRecord* stream, const StreamRecord* user,
                           const PendingEvent* pending) noexcept nogil
cdef bint all_are_past(Engine* engine, uint64_t moment) noexcept nogil
cdef void note_all_past(Engine* engine, uint64_t moment) noexcept nogil
cdef void ask_streams(Arena* arena, uint64_t moment) noexcept nogil
cdef void probes_clear(Arena* arena) noexcept nogil


cdef inline bint is_past(const Engine* engine, const StreamRecord* stream, uint64_t moment) noexcept nogil:
    """Whether a stream was seen finished with what it had at a moment."""
    return min(moment, stream.latest) <= stream.done or engine.table.event_record == NULL


cdef inline void clock_clear(Clock* clock) noexcept nogil:
    clock.count = 0
    clock.everyone = 0


cdef inline bint clock_covers(Engine* engine, const Clock* clock, const StreamRecord* stream) noexcept nogil:
    """Whether `stream` comes after everything that the clock holds. Mostly it is the one stream that is in it."""
    if clock.everyone == 0 and (clock.count == 0 or clock.count == 1 and clock.streams[0] == stream.index):
        return True
    return clock_covers_slowly(engine, clock, stream)
