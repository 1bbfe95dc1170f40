from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.placement.dense.structures cimport TILE_FREE, Arena, Tile, View, tile_behind, tile_end, view_end
from allotment._core.placement.dense.tile cimport tile_at
from allotment._core.records.trace cimport ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP, trace_report


cdef void report(Arena* arena, int action, address_t address, bytes_t size, stream_t stream,
                 uint32_t context) noexcept nogil:
    trace_report(&arena.engine.trace, action, address, size, stream, arena.pool.first, arena.pool.second, context)


cdef void report_places(Arena* arena, const Tile* tile, bint at_home, int action, uint32_t context) noexcept nogil:
    """Report the parts of a tile that are not at home: where they are, or where their home is."""
    cdef const View* view = tile.view
    cdef address_t low, high, place
    while view != NULL and view.address < tile_end(tile):
        if view.chunk.home != view:
            low = max(tile.block.address, view.address)
            high = min(tile_end(tile), view_end(view))
            place = view.chunk.home.address + (low - view.address) if at_home else low
            report(arena, action, place, high - low, tile.block.free_list.stream.handle, context)
        view = view.behind


cdef void report_moves(Arena* arena, const Tile* tile, bint home, uint32_t context) noexcept nogil:
    """Report that the bytes of a tile in use come from their homes, or go back there."""
    report_places(arena, tile, not home, ACTION_SEGMENT_UNMAP, context)
    report_places(arena, tile, home, ACTION_SEGMENT_MAP, context)


cdef void report_new_home(Arena* arena, const View* old, const View* new) noexcept nogil:
    """Report that the free bytes of a chunk have another home. pre: nothing is used through the old home"""
    cdef const Tile* tile = tile_at(arena, old.region, old.address)
    cdef address_t low
    cdef bytes_t size
    while tile != NULL and tile.block.address < view_end(old):
        if tile.state == TILE_FREE:
            low = max(tile.block.address, old.address)
            size = min(tile_end(tile), view_end(old)) - low
            report(arena, ACTION_SEGMENT_UNMAP, low, size, 0, 0)
            report(arena, ACTION_SEGMENT_MAP, new.address + (low - old.address), size, 0, 0)
        tile = tile_behind(tile)
