"""The device of a replay: addresses and capacity, answers from a tape, events that finish when the loop says so.

It is a small variant of the simulated device. The simulated device keeps exact records and serves any program. Only one
loop on one thread uses this device, so it needs neither a lock nor records, and a call costs almost nothing.

- While it follows a tape, a new segment is at its recorded address, and refused if the recording refused it.
- Otherwise a segment is at the next suggested address, if that one has the same size and is free; else at the
  lowest address with room, as with drivers. Up to `capacity` in all.
- An event has the number of the call (`due`) at whose beginning its stream has reached it.
- Driver calls are counted by kind, and priced by the device's table of costs.
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
    # Microseconds over MiB: linear between points, and extrapolated after the last.
    int count
    double mebibytes[COST_POINTS]
    double microseconds[COST_POINTS]

cdef struct ReplayState:
    int64_t calls[CALL_KINDS]
    double microseconds         # of all calls
    int64_t unset_views         # mapped since access was last set, which has a cost for each of them
    Cost costs[CALL_KINDS]
    bytes_t capacity, used
    Place* places               # segments that this device placed, by address
    size_t place_count, place_room
    address_t packed_end        # own places are contiguous up to here: no room before
    const Place* suggestions    # addresses of the recording's segments, in order
    size_t suggestion_count, suggestions_used
    address_t next_range        # ranges are few and large: they follow each other
    address_t placed            # address of the next segment or range; not 0 while a layout is being restored
    Tape* tape
    int64_t now                 # number of the call that is being replayed
    int64_t due                 # the due of the events recorded next
    int64_t* event_due          # by event handle
    size_t event_count, event_room

cdef class ReplayDevice(Device):
    cdef ReplayState state


cdef inline int64_t memory_calls(const ReplayState* device) noexcept nogil:
    """Memory calls so far: all except those about events."""
    cdef int64_t total = 0
    cdef int kind
    for kind in range(CALL_RECORD):
        total += device.calls[kind]
    return total
