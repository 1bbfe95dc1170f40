"""Pausing: a pool's physical memory goes back to the device, and every address stays.

    awake ── pause_begin ──> falling asleep ── pause_end ──> asleep ── resume_begin ──> waking ── resume_end ──> awake
                                  |  contents to the host                 ^    contents from the host
                                  └─ pause_undo: as it was before         └─ fails whole: nothing has changed

The blocks do not notice: they are mapped, as far as they know, and which pages a resume has to back again is seen by
which lie under mapped blocks. What of them has no memory is `Rack.away`. A pool that is not awake serves no request;
its blocks can be freed. While contents are on their way, nothing of it is unmapped (`is_moving`).

It needs memory whose addresses are not the device's to choose: expandable segments, which those of tags always are.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Engine, Failure, Pool

cdef struct Extent:
    address_t address
    bytes_t size

cdef struct ExtentList:
    Extent* extents
    size_t count, room
    bytes_t total

# pre of all: inside. The pool stays as long as it is not awake.
cdef bint pause_begin(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
# Where the contents are that have to be kept: blocks in use, neighbours joined. The list is the caller's.
cdef bint pause_extents(Engine* engine, Pool* pool, ExtentList* list, Failure* failure) noexcept nogil
cdef void pause_undo(Engine* engine, Pool* pool) noexcept nogil
# If the device refuses to take something back, the pool is asleep all the same, and pausing it again tries the rest.
cdef bint pause_end(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
cdef bint resume_begin(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil
cdef void resume_end(Engine* engine, Pool* pool) noexcept nogil
