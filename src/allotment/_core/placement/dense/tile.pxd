"""Splits, joins, shadows and appends tiles of a region. It carries out decisions; everything that can fail was reserved
before.

    free      |----------------------------- A ----------------------------|
    split     |--- A: free ---|---- new: in use ----|----- new: free ------|     either free end may be missing
    free      |------------------------------ A ---------------------------|     joined with its free neighbours

Allocating bytes cuts the same bytes out of every other view of their chunks, as shadows of the user; freeing them frees
them everywhere. The addresses of a dropped view become a gap, which may be filled again from its front.

Cost: O(log n) for n free tiles, for the tile and for each other view of each chunk under it.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.placement.dense.structures cimport Arena, Clock, Region, Tile, View

cdef Tile* tile_cut(Arena* arena, Tile* tile, address_t address, bytes_t size, int state) noexcept nogil
cdef Tile* tile_free(Arena* arena, Tile* tile, const Clock* clock) noexcept nogil
cdef Tile* tile_append(Arena* arena, Region* region, bytes_t size, int state, View* view) noexcept nogil
cdef Tile* append_free(Arena* arena, Region* region, bytes_t size, View* view, const Clock* clock) noexcept nogil
cdef void tiles_vanish(Arena* arena, const View* view) noexcept nogil
cdef Tile* fill_gap(Arena* arena, Tile* gap, bytes_t size, View* view) noexcept nogil
cdef void tile_drop_free(Arena* arena, Tile* tile) noexcept nogil
cdef Tile* tile_at(Arena* arena, Region* region, address_t address) noexcept nogil
cdef uint64_t records_to_hand_out(const Tile* tile, address_t address, bytes_t size) noexcept nogil
cdef Tile* tile_take(Arena* arena, Tile* tile, address_t address, bytes_t size) noexcept nogil
cdef void tile_give(Arena* arena, Tile* tile, const Clock* clock) noexcept nogil
