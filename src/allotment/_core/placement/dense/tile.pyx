from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.placement.dense.clocks cimport clock_clear, clock_join
from allotment._core.placement.dense.structures cimport (
    TILE_FREE, TILE_GAP, TILE_SHADOW, TILE_USED, Arena, Clock, Node, Region, Tile, View, place_of, region_of,
    tile_before, tile_behind, tile_end, view_end)
from allotment._core.placement.dense.tile_index cimport (
    gap_enter, gap_leave, node_up_to, tile_changed, tile_enter, tile_leave)
from allotment._core.placement.dense.usage cimport count_taken
from allotment._core.tools.slab cimport slab_give, slab_take


cdef inline Tile* tile_new(Arena* arena, Region* region, address_t address, bytes_t size, int state,
                           View* view) noexcept nogil:
    """Create a tile without neighbours, in no index. pre: a record is reserved"""
    cdef Tile* tile = <Tile*> slab_take(&arena.tiles)
    tile.block.address = address
    tile.block.size = size
    tile.block.requested = 0
    tile.block.prev = tile.block.next = NULL
    tile.block.free_list = region.range.free_list
    tile.block.range = &region.range
    tile.block.order = 0
    tile.block.uses = NULL
    tile.block.event_count = 0
    tile.block.allocated = False
    tile.block.mapped = state != TILE_GAP
    tile.block.releasable = False
    tile.block.withheld = 0
    tile.block.context = tile.block.segment_context = 0
    tile.state = state
    tile.view = view
    tile.user = tile.next_shadow = NULL
    return tile


cdef inline View* view_at(View* view, address_t address) noexcept nogil:
    """Return the view under an address, searching forward from `view`."""
    while view != NULL and view_end(view) <= address:
        view = view.behind
    return view


cdef inline View* view_back_at(View* view, address_t address) noexcept nogil:
    """Return the view under an address, searching backward from `view`."""
    while view.address > address:
        view = view.before
    return view


cdef inline void link_behind(Tile* tile, Tile* new) noexcept nogil:
    new.block.prev = &tile.block
    new.block.next = tile.block.next
    if tile.block.next != NULL:
        tile.block.next.prev = &new.block
    else:
        region_of(tile).last = new
    tile.block.next = &new.block


cdef inline void link_before(Tile* tile, Tile* new) noexcept nogil:
    new.block.next = &tile.block
    new.block.prev = tile.block.prev
    if tile.block.prev != NULL:
        tile.block.prev.next = &new.block
    else:
        region_of(tile).range.head = &new.block
    tile.block.prev = &new.block


cdef inline void unlink(Arena* arena, Tile* tile) noexcept nogil:
    """Remove a tile from its region and free the record."""
    cdef Region* region = region_of(tile)
    if tile.block.prev != NULL:
        tile.block.prev.next = tile.block.next
    else:
        region.range.head = tile.block.next
    if tile.block.next != NULL:
        tile.block.next.prev = tile.block.prev
    else:
        region.last = <Tile*> tile.block.prev
    slab_give(&arena.tiles, tile)


cdef Tile* tile_cut(Arena* arena, Tile* tile, address_t address, bytes_t size, int state) noexcept nogil:
    """Cut bytes out of a free tile as a separate tile. pre: two records are reserved"""
    cdef Region* region = region_of(tile)
    cdef bytes_t leading = address - tile.block.address
    cdef bytes_t trailing = tile.block.size - leading - size
    cdef View* view
    cdef Tile* piece
    cdef Tile* rest
    if leading == 0 and trailing == 0:
        tile_leave(arena, tile)
        tile.state = state
        return tile
    if leading == 0:
        piece = tile_new(arena, region, address, size, state, tile.view)
        link_before(tile, piece)
        tile.view = view_at(tile.view, address + size)
        tile.block.address += size
        tile.block.size = trailing
        tile_changed(arena, tile)
        return piece
    if trailing == 0 and tile.block.next != NULL and (<Tile*> tile.block.next).view != NULL:
        view = view_back_at((<Tile*> tile.block.next).view, address)
    else:
        view = view_at(tile.view, address)
    piece = tile_new(arena, region, address, size, state, view)
    tile.block.size = leading
    link_behind(tile, piece)
    if trailing > 0:
        rest = tile_new(arena, region, address + size, trailing, TILE_FREE, view_at(view, address + size))
        rest.clock = tile.clock
        link_behind(piece, rest)
        tile_changed(arena, tile)
        tile_enter(arena, rest)
    else:
        tile_changed(arena, tile)
    return piece


cdef Tile* tile_free(Arena* arena, Tile* tile, const Clock* clock) noexcept nogil:
    """Free a tile; return the tile it has become, joined with its free neighbours."""
    cdef Tile* before = tile_before(tile)
    cdef Tile* behind = tile_behind(tile)
    if behind != NULL and behind.state != TILE_FREE:
        behind = NULL
    if before != NULL and before.state == TILE_FREE:
        clock_join(&before.clock, clock)
        before.block.size += tile.block.size
        unlink(arena, tile)
        if behind != NULL:
            clock_join(&before.clock, &behind.clock)
            before.block.size += behind.block.size
            tile_leave(arena, behind)
            unlink(arena, behind)
        tile_changed(arena, before)
        return before
    if behind != NULL:
        clock_join(&behind.clock, clock)
        behind.block.address = tile.block.address
        behind.block.size += tile.block.size
        behind.view = tile.view
        unlink(arena, tile)
        tile_changed(arena, behind)
        return behind
    tile.state = TILE_FREE
    tile.user = tile.next_shadow = NULL
    tile.clock = clock[0]
    tile_enter(arena, tile)
    return tile


cdef Tile* tile_append(Arena* arena, Region* region, bytes_t size, int state, View* view) noexcept nogil:
    """Append a tile to a region, in no index. pre: a record is reserved"""
    cdef Tile* tile = tile_new(arena, region, region.range.base + region.range.size, size, state, view)
    region.range.size += size
    if region.last == NULL:
        region.range.head = &tile.block
        region.last = tile
    else:
        link_behind(region.last, tile)
    return tile


cdef Tile* append_free(Arena* arena, Region* region, bytes_t size, View* view, const Clock* clock) noexcept nogil:
    """Append free bytes to a region. pre: a record is reserved"""
    cdef Clock none
    if clock == NULL:
        clock_clear(&none)
        clock = &none
    return tile_free(arena, tile_append(arena, region, size, TILE_SHADOW, view), clock)


cdef void tile_drop_free(Arena* arena, Tile* tile) noexcept nogil:
    """Delete a free tile whose memory the arena no longer has."""
    tile_leave(arena, tile)
    unlink(arena, tile)


cdef Tile* tile_at(Arena* arena, Region* region, address_t address) noexcept nogil:
    """Return the tile that contains an address. pre: it exists"""
    cdef Node* node = node_up_to(arena.free_tiles, 0, place_of(region, address))
    cdef Tile* tile
    if node != NULL and region_of(node.tile) == region:
        tile = node.tile
    else:
        tile = <Tile*> region.range.head
    while tile_end(tile) <= address:
        tile = tile_behind(tile)
    return tile


# --- addresses without memory -------------------------------------------------------------------------------------

cdef void gap_join(Arena* arena, Tile* gap) noexcept nogil:
    """Join a gap with adjacent gaps; delete a gap at the end of a region, so that the region ends before it."""
    cdef Region* region = region_of(gap)
    cdef Tile* other = tile_behind(gap)
    gap.view = NULL
    gap.block.mapped = False
    if other != NULL and other.state == TILE_GAP:
        gap.block.size += other.block.size
        gap_leave(arena, other)
        unlink(arena, other)
    other = tile_before(gap)
    if other != NULL and other.state == TILE_GAP:
        gap.block.address = other.block.address
        gap.block.size += other.block.size
        gap_leave(arena, other)
        unlink(arena, other)
    if gap.block.next != NULL:
        gap_enter(arena, gap)
        return
    region.range.size -= gap.block.size
    other = tile_before(gap)
    unlink(arena, gap)
    if other != NULL and other.state == TILE_FREE:
        tile_changed(arena, other)


cdef void forget_shadow(Tile* shadow) noexcept nogil:
    cdef Tile** link = &shadow.user.user
    while link[0] != shadow:
        link = &link[0].next_shadow
    link[0] = shadow.next_shadow
    shadow.user = shadow.next_shadow = NULL


cdef void tiles_vanish(Arena* arena, const View* view) noexcept nogil:
    """Turn the addresses of a view into a gap. pre: nothing is used through it; two records are reserved"""
    cdef address_t at = view.address
    cdef Tile* gap = NULL
    cdef Tile* tile = tile_at(arena, view.region, at)
    cdef Tile* piece
    while at < view_end(view):
        if tile.state == TILE_FREE:
            piece = tile_cut(arena, tile, at, min(tile_end(tile), view_end(view)) - at, TILE_GAP)
        else:
            piece = tile
            forget_shadow(piece)
            piece.state = TILE_GAP
        at = tile_end(piece)
        tile = tile_behind(piece)
        if gap == NULL:
            gap = piece
        else:
            gap.block.size += piece.block.size
            unlink(arena, piece)
    gap_join(arena, gap)


cdef Tile* fill_gap(Arena* arena, Tile* gap, bytes_t size, View* view) noexcept nogil:
    """Turn the front of a gap into new free memory. pre: a record is reserved"""
    cdef Clock none
    cdef Tile* tile = tile_new(arena, region_of(gap), gap.block.address, size, TILE_SHADOW, view)
    gap_leave(arena, gap)
    link_before(gap, tile)
    gap.block.address += size
    gap.block.size -= size
    if gap.block.size > 0:
        gap_enter(arena, gap)
    else:
        unlink(arena, gap)
    clock_clear(&none)
    return tile_free(arena, tile, &none)


# --- a user's bytes, in every view --------------------------------------------------------------------------------

cdef uint64_t records_to_hand_out(const Tile* tile, address_t address, bytes_t size) noexcept nogil:
    """Return the most tiles that allocating these bytes can create."""
    cdef View* view = tile.view
    cdef uint64_t records = 2
    if view != NULL and view.chunk.view_count == 1 and view_end(view) >= tile.block.address + size \
            and address == tile.block.address:
        return records
    view = view_at(view, address)
    while view != NULL and view.address < address + size:
        records += 2 * (view.chunk.view_count - 1)
        view = view.behind
    return records


cdef void cast_shadows(Arena* arena, Tile* tile, View* view, bytes_t offset, bytes_t size) noexcept nogil:
    """Cut bytes of a chunk out of every view except the one they are used through."""
    cdef View* other = view.chunk.home
    cdef Tile* shadow
    while other != NULL:
        if other != view:
            shadow = tile_cut(arena, tile_at(arena, other.region, other.address + offset), other.address + offset, size,
                              TILE_SHADOW)
            shadow.next_shadow = tile.user
            shadow.user = tile
            tile.user = shadow
        other = other.next_of_chunk


cdef Tile* tile_take(Arena* arena, Tile* tile, address_t address, bytes_t size) noexcept nogil:
    """Allocate bytes of a free tile. pre: `records_to_hand_out` are reserved"""
    cdef Tile* taken = tile_cut(arena, tile, address, size, TILE_USED)
    cdef View* view = taken.view
    cdef address_t low, high
    taken.user = NULL
    taken.keeps_clock = False
    count_taken(arena, taken)
    while view != NULL and view.address < address + size:
        if view.chunk.view_count > 1:
            low = max(address, view.address)
            high = min(address + size, view_end(view))
            cast_shadows(arena, taken, view, low - view.address, high - low)
        view = view.behind
    return taken


cdef void tile_give(Arena* arena, Tile* tile, const Clock* clock) noexcept nogil:
    """Free the bytes of a tile in every view. pre: `count_given`"""
    cdef Tile* shadow = tile.user
    cdef Tile* following
    tile_free(arena, tile, clock)
    while shadow != NULL:
        following = shadow.next_shadow
        tile_free(arena, shadow, clock)
        shadow = following
