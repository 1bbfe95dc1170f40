from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t, stream_t
from allotment._core.mechanism.address_map cimport has_room_for_one
from allotment._core.mechanism.block cimport note_handed_out
from allotment._core.model.model cimport Block, Engine
from allotment._core.model.sizes cimport whole_blocks
from allotment._core.placement.dense.clocks cimport clock_clear, clock_note, is_only_of
from allotment._core.placement.dense.growth cimport note_peak
from allotment._core.placement.dense.structures cimport (
    TILE_FREE, Arena, Clock, Node, Tile, place_of, region_of, tile_before, tile_behind)
from allotment._core.placement.dense.tile cimport tile_give
from allotment._core.placement.dense.tile_index cimport first_fit
from allotment._core.placement.dense.usage cimport count_taken


cdef inline Tile* free_behind(const Tile* tile) noexcept nogil:
    cdef Tile* behind = tile_behind(tile)
    return behind if behind != NULL and behind.state == TILE_FREE else NULL


cdef inline bint is_first_fit(const Arena* arena, const Tile* tile, const Tile* behind) noexcept nogil:
    """Whether a request of its size and stream would get exactly the bytes at hand, if they were settled.

    Settled, they are the front of a tile, together with the free tile `behind` them.
    """
    cdef const Tile* before = tile_before(tile)
    cdef const Node* fit
    if before != NULL and before.state == TILE_FREE or tile.user != NULL:
        return False
    if behind != NULL and not is_only_of(&behind.clock, tile.block.free_list.stream):
        return False
    fit = first_fit(arena.free_tiles, tile.block.size)
    return fit == NULL or fit.place > place_of(region_of(tile), tile.block.address)


cdef Block* hit_at_hand(Engine* engine, bytes_t size, stream_t stream, uint32_t context) noexcept nogil:
    cdef Arena* arena = <Arena*> engine.defaults.large.arena
    cdef Tile* tile = arena.at_hand
    cdef Tile* behind
    if tile == NULL or tile.block.size != whole_blocks(size) or tile.block.free_list.stream.handle != stream:
        return NULL
    behind = free_behind(tile)
    if not (is_first_fit(arena, tile, behind) and has_room_for_one(engine)):
        return NULL
    arena.at_hand = NULL
    if behind != NULL:      # a split leaves the clock of both to the rest
        clock_note(&behind.clock, tile.block.free_list.stream, arena.at_hand_freed)
    count_taken(arena, tile)
    note_handed_out(engine, &tile.block, size, context)
    note_peak(engine)
    return &tile.block


cdef void settle_slowly(Arena* arena) noexcept nogil:
    cdef Tile* tile = arena.at_hand
    cdef Clock clock
    clock_clear(&clock)
    clock_note(&clock, tile.block.free_list.stream, arena.at_hand_freed)
    arena.at_hand = NULL
    tile_give(arena, tile, &clock)
