"""Allocates and releases the physical memory and the addresses of one arena: chunks, views, regions.

Growing is one operation, `arena_extend`. It maps pieces (new or existing chunks) one after the other at the end of a
region, or new chunks at the front of a gap. It reserves records first and then calls the device: create, map, access.
After a refusal it undoes what was done. What it cannot undo becomes a leftover. Emptying the cache retries the
leftover, and nothing is ever mapped over it.

    region   | ... tiles ... |  tail of A |  B  |  new  | head of C |
                             ^ its end     ------ pieces ---------->

The arena releases only memory that the device was seen finished with. Other threads may have entered during the wait.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.model.model cimport Engine, Failure, Pool
from allotment._core.placement.dense.structures cimport Arena, DenseChunk, Region, Tile, View

cdef struct Piece:
    DenseChunk* chunk           # NULL: create one
    bytes_t size

cdef Arena* arena_make(Engine* engine, Pool* pool, bint is_private) noexcept nogil
cdef void arena_clear(Arena* arena) noexcept nogil
cdef bytes_t addresses_left(const Region* region) noexcept nogil
cdef Region* region_make(Arena* arena, bytes_t size, bint is_main, stream_t stream, Failure* failure) noexcept nogil
cdef bint arena_extend(Arena* arena, Region* region, Tile* gap, Piece* pieces, size_t count, stream_t stream,
                       uint32_t context, Failure* failure) noexcept nogil
cdef void drop_old_views(Arena* arena, DenseChunk* chunk, const Region* region) noexcept nogil
cdef bint arena_adopt(Arena* arena, Arena* source, uint32_t context, Failure* failure) noexcept nogil
cdef bint arena_trim(Arena* arena, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
cdef bint arena_retire(Arena* arena, Failure* failure) noexcept nogil
cdef bint arena_grant(Arena* arena, device_t device, Failure* failure) noexcept nogil
cdef void free_ends(Arena* arena, const DenseChunk* chunk, bytes_t* head, bytes_t* tail) noexcept nogil


cdef inline bint is_shown_in(const DenseChunk* chunk, const Region* region) noexcept nogil:
    cdef View* view = chunk.home
    while view != NULL:
        if view.region == region:
            return True
        view = view.next_of_chunk
    return False
