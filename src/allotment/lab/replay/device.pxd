"""The device of a replay: addresses and capacity, answers from a tape, events that finish when the loop says so.

It is the simulated device's small sister. That one keeps books on everything and serves any program; this one is
used by one loop on one thread, so it needs neither a lock nor books, and a call costs next to nothing.

- With a tape that is being followed, a new segment is where the recording has it, and refused where it was.
- Otherwise a segment is put where the next one of the suggestions is, if that is of the same size and its place free;
  else at the lowest address where there is room, as drivers do. Up to `capacity` in all.
- An event carries the number of the call (`due`) at whose beginning its stream has got that far.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t
from allotment.lab.replay.tape cimport Tape

cdef struct Place:
    address_t address
    bytes_t size

cdef struct ReplayState:
    bytes_t capacity, used
    Place* places               # segments that were put somewhere here, by address
    size_t place_count, place_room
    const Place* suggestions    # where the recording had its segments, in order
    size_t suggestion_count, suggestions_used
    address_t next_range        # ranges are few and large: one behind the other
    address_t placed            # where the next segment or range is, not 0 while a layout is being restored
    Tape* tape
    int64_t now                 # number of the call that is being replayed
    int64_t due                 # given to the events that are recorded next
    int64_t* event_due          # by event handle
    size_t event_count, event_room
    size_t chunk_count

cdef class ReplayDevice(Device):
    cdef ReplayState state
