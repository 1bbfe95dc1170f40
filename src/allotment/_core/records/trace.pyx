from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memcpy, memmove, memset

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.records.tenants cimport tenant_of
from allotment._core.records.trace cimport Trace, TraceRecord, tracker_t

cdef extern from *:
    """
    #ifndef ALLOTMENT_CLOCK
    #define ALLOTMENT_CLOCK
    #include <stdint.h>
    #if defined(_MSC_VER)
    #include <windows.h>
    #define ALLOTMENT_THREAD_LOCAL __declspec(thread)
    static __inline int64_t allotment_now_us(void) {
        FILETIME t; GetSystemTimePreciseAsFileTime(&t);
        return (int64_t)((((uint64_t)t.dwHighDateTime << 32) | t.dwLowDateTime) / 10 - 11644473600000000ULL);
    }
    #else
    #include <time.h>
    #define ALLOTMENT_THREAD_LOCAL __thread
    static inline int64_t allotment_now_us(void) {
        struct timespec t; clock_gettime(CLOCK_REALTIME, &t);
        return (int64_t)t.tv_sec * 1000000 + t.tv_nsec / 1000;
    }
    #endif
    static ALLOTMENT_THREAD_LOCAL uint32_t allotment_compile_context = 0;
    static ALLOTMENT_THREAD_LOCAL uint32_t allotment_metadata = 0;
    #endif
    """
    int64_t allotment_now_us() noexcept nogil
    uint32_t allotment_compile_context
    uint32_t allotment_metadata


cdef void trace_init(Trace* trace) noexcept nogil:
    memset(trace, 0, sizeof(Trace))
    trace.most = 1


cdef void trace_clear(Trace* trace) noexcept nogil:
    free(trace.ring)
    trace.ring = NULL
    trace.stored = trace.room = trace.cursor = 0


cdef void reverse(TraceRecord* first, TraceRecord* end) noexcept nogil:
    while first + 1 < end:
        end -= 1
        first[0], end[0] = end[0], first[0]
        first += 1


cdef void put_in_order(Trace* trace) noexcept nogil:
    """Rotate the oldest entry to the front in place, since there may be no memory for a second ring."""
    if trace.cursor == 0:
        return
    reverse(trace.ring, trace.ring + trace.cursor)
    reverse(trace.ring + trace.cursor, trace.ring + trace.stored)
    reverse(trace.ring, trace.ring + trace.stored)
    trace.cursor = 0


cdef void trace_listen(Trace* trace, bint history, size_t most) noexcept nogil:
    most = max(most, <size_t> 1)
    if trace.in_place:
        trace.cursor %= most
    elif most != trace.most:
        put_in_order(trace)
    if trace.stored > most and not trace.in_place:
        memmove(trace.ring, trace.ring + (trace.stored - most), most * sizeof(TraceRecord))
        trace.stored = most
    trace.history = history
    trace.most = most
    update_on(trace)


cdef void update_on(Trace* trace) noexcept nogil:
    trace.on = trace.history or trace.counting or trace.tracker != NULL or trace.relay != NULL


cdef void trace_count(Trace* trace, bint counting) noexcept nogil:
    trace.counting = counting
    update_on(trace)


cdef void trace_track(Trace* trace, tracker_t tracker, void* listener) noexcept nogil:
    trace.tracker = tracker
    trace.listener = listener
    update_on(trace)


cdef void trace_relay(Trace* trace, tracker_t relay, void* listener) noexcept nogil:
    trace.relay = relay
    trace.relay_listener = listener
    update_on(trace)


cdef bint make_room(Trace* trace) noexcept nogil:
    cdef size_t room = min(max(<size_t> 1024, 2 * trace.room), trace.most)
    cdef TraceRecord* larger
    if trace.stored < trace.room:
        return True
    larger = <TraceRecord*> realloc(trace.ring, room * sizeof(TraceRecord))
    if larger == NULL:
        return False
    trace.ring = larger
    trace.room = room
    return True


cdef TraceRecord* next_place(Trace* trace) noexcept nogil:
    """Return the place of the ring's next record; NULL if there is no memory for the first one."""
    cdef TraceRecord* place
    # Append only if the last entry is the newest: the ring may have wrapped when growing it failed earlier.
    if trace.stored < trace.most and (trace.cursor == 0 or trace.in_place) and make_room(trace):
        place = &trace.ring[trace.stored]
        trace.stored += 1
        return place
    if trace.stored == 0:
        return NULL
    # Full, or no host memory for a longer history: overwrite the oldest entry.
    place = &trace.ring[trace.cursor]
    trace.cursor += 1
    if trace.cursor >= min(trace.most, trace.stored):
        trace.cursor = 0
    return place


cdef inline void fill(TraceRecord* record, const Trace* trace, int action, address_t address, bytes_t size,
                      stream_t stream, uint64_t pool_first, uint64_t pool_second, uint32_t stack) noexcept nogil:
    record.action = action
    record.exact_address = trace.exact_address
    record.stack = stack
    record.address = address
    record.size = size
    record.stream = stream
    record.pool_first = pool_first
    record.pool_second = pool_second
    record.time_us = trace.moment if trace.moment != 0 else allotment_now_us()
    record.compile_context = allotment_compile_context
    record.metadata = allotment_metadata


cdef void trace_report(Trace* trace, int action, address_t address, bytes_t size, stream_t stream,
                       uint64_t pool_first, uint64_t pool_second, uint32_t stack) noexcept nogil:
    cdef TraceRecord record
    cdef TraceRecord* kept
    if not trace.on:
        return
    if not trace.attach_stacks:
        stack = tenant_of(stack)
    if trace.tracker != NULL or trace.relay != NULL:
        fill(&record, trace, action, address, size, stream, pool_first, pool_second, stack)
        if trace.tracker != NULL:
            trace.tracker(trace.listener, &record)
        if trace.relay != NULL:
            trace.relay(trace.relay_listener, &record)
    if not trace.history or (trace.skip >> action) & 1:
        return
    kept = next_place(trace) if trace.place == NULL else trace.place(trace.spool)
    if kept == NULL:
        return
    # Written in place: copying a local record would read narrow writes back in wide words, which stalls.
    fill(kept, trace, action, address, size, stream, pool_first, pool_second, stack)


cdef void trace_hold_time(Trace* trace) noexcept nogil:
    trace.moment = allotment_now_us()


cdef void trace_copy(const Trace* trace, TraceRecord* out) noexcept nogil:
    """Copy all records, oldest first. pre: `out` has room for all stored ones"""
    cdef size_t older = trace.stored - trace.cursor
    if trace.stored > 0:
        memcpy(out, &trace.ring[trace.cursor], older * sizeof(TraceRecord))
        memcpy(out + older, trace.ring, trace.cursor * sizeof(TraceRecord))


cdef uint32_t trace_set_compile_context(uint32_t context) noexcept nogil:
    """Set the calling thread's compile context; return the previous one."""
    global allotment_compile_context
    cdef uint32_t before = allotment_compile_context
    allotment_compile_context = context
    return before


cdef uint32_t trace_set_metadata(uint32_t metadata) noexcept nogil:
    global allotment_metadata
    cdef uint32_t before = allotment_metadata
    allotment_metadata = metadata
    return before
