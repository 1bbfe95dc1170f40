"""The device of a replay: addresses and capacity, answers from a tape, events that finish when the loop says so.

It is the simulated device's small sister. That one keeps books on everything and serves any program; this one is
used by one loop on one thread, so it needs neither a lock nor books, and a call costs next to nothing.

- With a tape that is being followed, a new segment is where the recording has it, and refused where it was.
- Otherwise a segment is put where the next one of the suggestions is, if that is of the same size and its place free;
  else at the lowest address where there is room, as drivers do. Up to `capacity` in all.
- An event carries the number of the call (`due`) at whose beginning its stream has got that far.
- What a driver would be called for is counted by kind, and priced by the table of costs that the device is made with.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t
from allotment.lab.replay.tape cimport Tape

cdef struct Place:
    address_t address
    bytes_t size

cdef enum:                      # in the order of driver_costs.CALLS
    CALL_RESERVE
    CALL_CREATE
    CALL_MAP
    CALL_ACCESS
    CALL_UNMAP
    CALL_RELEASE
    CALL_MALLOC
    CALL_FREE
    CALL_RECORD
    CALL_WAIT
    CALL_KINDS

cdef enum:
    COST_POINTS = 4

cdef struct Cost:
    # Microseconds over MiB: straight lines between points, the last one going on.
    int count
    double mebibytes[COST_POINTS]
    double microseconds[COST_POINTS]

cdef struct ReplayState:
    int64_t calls[CALL_KINDS]
    double microseconds         # of all calls
    int64_t unset_views         # mapped since access was set last: setting it costs so much for each
    Cost costs[CALL_KINDS]
    bytes_t capacity, used
    Place* places               # segments that were put somewhere here, by address
    size_t place_count, place_room
    address_t packed_end        # up to here our own places stand side by side: no room before
    const Place* suggestions    # where the recording had its segments, in order
    size_t suggestion_count, suggestions_used
    address_t next_range        # ranges are few and large: one behind the other
    address_t placed            # where the next segment or range is, not 0 while a layout is being restored
    Tape* tape
    int64_t now                 # number of the call that is being replayed
    int64_t due                 # given to the events that are recorded next
    int64_t* event_due          # by event handle
    size_t event_count, event_room

cdef class ReplayDevice(Device):
    cdef ReplayState state


cdef inline int64_t memory_calls(const ReplayState* device) noexcept nogil:
    """Calls about memory so far: all but those about events."""
    cdef int64_t total = 0
    cdef int kind
    for kind in range(CALL_RECORD):
        total += device.calls[kind]
    return total
