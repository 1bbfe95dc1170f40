"""Pausing returns a pool's physical memory to the device and keeps every address.

    awake ── pause_begin ──> falling asleep ── pause_end ──> asleep ── resume_begin ──> waking ── resume_end ──> awake
                                  |  contents to the host                 ^    contents from the host
                                  └─ pause_undo: as it was before         └─ fails whole: nothing has changed

The blocks do not change: they still count as mapped, and a resume backs the pages under mapped blocks again.
`Half.away` counts the bytes of mapped blocks without memory. A pool that is not awake serves no request, but its blocks
can be freed. While contents are being copied, nothing in the pool may be unmapped (`is_moving`).

Pausing needs addresses that the device does not choose: expandable segments, which the pools of tags always use.
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

# pre for all functions: the caller is inside the engine, and the pool exists at least until it is awake again.
cdef bint pause_begin(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
# Lists the extents whose contents must be kept: allocated blocks, adjacent ones joined, and all memory that graphs may
# use. The caller owns the list.
cdef bint pause_extents(Engine* engine, Pool* pool, ExtentList* list, Failure* failure) noexcept nogil
cdef void pause_undo(Engine* engine, Pool* pool) noexcept nogil
# If the device refuses to take back some memory, the pool is asleep nevertheless; pausing it again retries the rest.
cdef bint pause_end(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
cdef bint resume_begin(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil
cdef void resume_end(Engine* engine, Pool* pool) noexcept nogil
