"""A rehearsal tries a list of requests on a copy of the engine, to learn their outcome.

    live engine ──(copied under its lock)──> twin engine over a paper device ──> serve, serve, ... ──> discarded

The twin has the pools, ranges, blocks, routes, limits and counters of the live engine. The twin's device knows only how
much memory the live device has left. So requests run through the very code that would serve them, and the live engine
does not change: even frees whose streams are done complete only in the twin.

A `Refusal` names what a copy cannot reproduce: memory that a placement keeps itself, a user's allocator, a filter that
calls user code or asks about a capture, frees that a capture defers. Free-memory callbacks are not rehearsed, because
the rehearsal would have to run them.
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
    # A device that only counts memory, and has addresses for all of it.
    DeviceTable table
    bytes_t left, total, page
    address_t next              # addresses from here on are free
    address_t placed            # address of the next range, while copying; 0: at `next`

cdef struct Wish:
    bytes_t size
    stream_t stream

cdef struct Rehearsal:
    Refusal refusal
    bint fits
    size_t served               # number of requests served before the first that failed
    count_t new_reserved        # change of reserved bytes
    Failure failure             # of the rehearsal itself, or of the request

cdef bint rehearse(Engine* engine, const Wish* wishes, size_t count, Rehearsal* out) noexcept nogil
