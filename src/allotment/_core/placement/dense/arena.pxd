"""Chunks, views, regions: physical memory and addresses of one arena, obtained and given back.

Growing is one operation, `arena_extend`: pieces, new chunks or chunks that are there, are mapped one behind the other
at the end of a region, or new ones at the front of a gap. Records are reserved first, then the device is asked: create,
map, access. A refusal undoes what was done; what cannot even be undone is a leftover, tried again when the cache is
emptied, and nothing is ever put over it.

    region   | ... tiles ... |  tail of A |  B  |  new  | head of C |
                             ^ its end     ------ pieces ---------->

Giving back touches only what the device was seen to be finished with. Others may have been in while it was waited for.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.model.model cimport Engine, Failure, Pool
from allotment._core.placement.dense.structures cimport Arena, DenseChunk, Region, Tile, View

cdef struct Piece:
    DenseChunk* chunk           # NULL: to be created
    bytes_t size

cdef Arena* arena_make(Engine* engine, Pool* pool, bint is_private) noexcept nogil
cdef void arena_clear(Arena* arena) noexcept nogil
cdef bytes_t addresses_left(const Region* region) noexcept nogil
cdef Region* region_make(Arena* arena, bytes_t size, stream_t stream, Failure* failure) noexcept nogil
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
