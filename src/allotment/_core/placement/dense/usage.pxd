"""How many bytes of each chunk and view are in use, and when they were used last.

This is all that changes besides the tiles when bytes are allocated and freed. On the hot path, so it is inline.
"""

from allotment._core.contract.types cimport address_t, bytes_t, count_t
from allotment._core.placement.dense.structures cimport Arena, Clock, DenseChunk, Tile, View, tile_end, view_end
from allotment._core.placement.dense.witness cimport witness_free
from allotment._core.records.stats cimport LARGE, Stats, tally_move


cdef inline void count_live(Arena* arena, DenseChunk* chunk, bytes_t live) noexcept nogil:
    """Set the bytes in use of a chunk. The free bytes of a partly used chunk count as inactive split."""
    cdef Stats* stats = &arena.engine.stats
    cdef bytes_t split = chunk.size - chunk.live if chunk.live > 0 else 0
    cdef bytes_t rest = chunk.size - live if live > 0 else 0
    chunk.live = live
    if (split > 0) != (rest > 0):
        tally_move(&stats.inactive_split, LARGE, 1 if rest > 0 else -1)
    tally_move(&stats.inactive_split_bytes, LARGE, <count_t> rest - <count_t> split)


cdef inline void count_taken(Arena* arena, const Tile* tile) noexcept nogil:
    """Count a request that was served with a tile."""
    cdef View* view = tile.view
    cdef address_t end = tile_end(tile)
    cdef bytes_t size
    arena.requests += 1
    while view != NULL and view.address < end:
        size = min(end, view_end(view)) - max(tile.block.address, view.address)
        count_live(arena, view.chunk, view.chunk.live + size)
        view.live += size
        view.last_use = arena.requests
        view = view.behind
    arena.active += tile.block.size


cdef inline void count_given(Arena* arena, const Tile* tile, const Clock* clock) noexcept nogil:
    """Count that a tile in use is free, with this clock."""
    cdef View* view = tile.view
    cdef address_t end = tile_end(tile)
    cdef address_t low, high
    while view != NULL and view.address < end:
        low = max(tile.block.address, view.address)
        high = min(end, view_end(view))
        count_live(arena, view.chunk, view.chunk.live - (high - low))
        view.live -= high - low
        view.freed = arena.engine.moment
        if arena.witnessed:
            witness_free(view.chunk, low - view.address, high - view.address, clock)
        view = view.behind
    arena.active -= tile.block.size
    if arena.loading:
        arena.freed += tile.block.size
        arena.loading = arena.freed <= max(<bytes_t> 1048576, arena.peak // 32)
