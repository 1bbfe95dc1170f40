"""Events of the engine, as fixed-size records in a ring.

The engine reports each event once, by `trace_report`. The hot path checks `on` first, so without a listener an event
costs one comparison. The listeners are the history and two tracker functions, one for Python's trackers and one for a
framework's. The ring keeps the history, unless `place` sends it elsewhere: on its way to a file (see `spool`). A record
holds only numbers: stacks, compile contexts and user metadata are interned elsewhere; 0 means none.

Readers start at the cursor, which is the oldest entry. A change of the size first puts the entries in order and then
keeps the newest ones that fit. (PyTorch leaves them in place, so that old entries appear among new ones.)
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from allotment._core.contract.types cimport address_t, bytes_t, stream_t

cdef enum Action:
    ACTION_ALLOC
    ACTION_FREE_REQUESTED
    ACTION_FREE_COMPLETED
    ACTION_SEGMENT_ALLOC
    ACTION_SEGMENT_FREE
    ACTION_SEGMENT_MAP
    ACTION_SEGMENT_UNMAP
    ACTION_SNAPSHOT
    ACTION_OOM
    ACTION_ANNOTATE
    ACTION_COUNT

cdef struct TraceRecord:
    unsigned short action
    unsigned short exact_address    # whether the event belongs to a request for one exact address
    uint32_t stack              # the context: interned stack and tenant, 0 = none
    address_t address           # OOM: the device's free memory
    bytes_t size
    stream_t stream
    uint64_t pool_first, pool_second
    int64_t time_us             # since the epoch
    uint32_t compile_context, metadata

ctypedef void (*tracker_t)(void* listener, const TraceRecord* record) noexcept nogil

ctypedef TraceRecord* (*place_t)(void* spool) noexcept nogil   # where the next record goes; NULL: it is not kept

cdef struct Trace:
    bint on                     # whether anyone listens: the only field that the hot path reads
    bint history                # whether the history listens
    bint counting               # whether tenants' memory is counted: see `Account` in the model
    bint in_place               # a change of size leaves entries in place: PyTorch's way, for comparing with it
    bint attach_stacks          # entries carry contexts
    uint32_t skip               # bit per action that the ring omits
    bint exact_address          # whether current reports belong to a request for one exact address
    int64_t moment              # if not 0: the time of all current reports, instead of the clock's
    place_t place               # if not NULL: records go there instead of the ring
    void* spool
    size_t most                 # most entries kept
    TraceRecord* ring
    size_t stored, room, cursor
    tracker_t tracker
    void* listener
    tracker_t relay             # the framework's
    void* relay_listener

cdef void trace_init(Trace* trace) noexcept nogil
cdef void trace_clear(Trace* trace) noexcept nogil
cdef void trace_listen(Trace* trace, bint history, size_t most) noexcept nogil
cdef void trace_count(Trace* trace, bint counting) noexcept nogil
cdef void trace_track(Trace* trace, tracker_t tracker, void* listener) noexcept nogil
cdef void trace_relay(Trace* trace, tracker_t relay, void* listener) noexcept nogil
cdef void trace_report(Trace* trace, int action, address_t address, bytes_t size, stream_t stream,
                       uint64_t pool_first, uint64_t pool_second, uint32_t stack) noexcept nogil
cdef void trace_hold_time(Trace* trace) noexcept nogil
cdef void trace_copy(const Trace* trace, TraceRecord* out) noexcept nogil
cdef uint32_t trace_set_compile_context(uint32_t context) noexcept nogil
cdef uint32_t trace_set_metadata(uint32_t metadata) noexcept nogil
