"""A rehearsal: what a list of requests would come to, tried on a copy of the engine.

    live engine ──(copied under its lock)──> twin engine over a device of paper ──> serve, serve, ... ──> discarded

The twin has the pools, ranges, blocks, routes, limits and counters of the live one; its device has as much memory left
as the live one's, and nothing else. So requests go through the very code that would serve them, and nothing of the live
engine changes: not even frees are completed whose streams are done. They are completed in the twin.

What a copy cannot know is refused by name (`Refusal`): memory that a placement keeps for itself, an allocator of the
user's own, a filter that calls the user or asks for a capture, frees that a capture puts off. Not rehearsed are the
free-memory callbacks, which would have to run.
"""

from libc.stddef cimport size_t

from allotment._core.contract.table cimport DeviceTable
from allotment._core.contract.types cimport address_t, bytes_t, count_t, stream_t
from allotment._core.model.model cimport Engine, Failure

cdef enum Refusal:
    NOT_REFUSED
    REFUSED_PLACEMENT
    REFUSED_ALLOCATOR
    REFUSED_FILTER
    REFUSED_DEFERRED

cdef struct Paper:
    # A device that has so much memory, and addresses for all of it.
    DeviceTable table
    bytes_t left, total, page
    address_t next              # free from here on
    address_t placed            # where the next range is, while the copy is made; 0: at `next`

cdef struct Wish:
    bytes_t size
    stream_t stream

cdef struct Rehearsal:
    Refusal refusal
    bint fits
    size_t served               # requests, up to the first that failed
    count_t new_reserved        # bytes at the end, less those now
    Failure failure             # of the rehearsal itself, or of the request

cdef bint rehearse(Engine* engine, const Wish* wishes, size_t count, Rehearsal* out) noexcept nogil
