from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.block cimport is_idle
from allotment._core.mechanism.invariant_failure cimport violated
from allotment._core.model.model cimport StreamRecord, Totals
from allotment._core.placement.dense.structures cimport (
    GRANULE, TILE_FREE, TILE_GAP, TILE_SHADOW, TILE_USED, Arena, Clock, DenseChunk, LastFree, Node, Region, Tile, View,
    place_of, region_of, tile_before, tile_behind, tile_end, view_end)
from allotment._core.placement.dense.tile_index cimport LARGE_TILE
from allotment._core.records.stats cimport LARGE


cdef str describe_tile(const Tile* tile):
    state = ("free", "used", "shadow", "gap")[tile.state]
    return f"{state} tile {tile.block.address:#x}+{tile.block.size} of region {region_of(tile).number}"


# --- tiles ----------------------------------------------------------------------------------------------------------

cdef int check_tile(Region* region, Tile* tile) except -1:
    cdef Tile* before = tile_before(tile)
    if tile.block.size == 0 or tile.block.size % 512 != 0 or tile.block.range != &region.range:
        violated("tile sizes are multiples of 512", describe_tile(tile))
    if before != NULL and before.state == tile.state and tile.state in (TILE_FREE, TILE_GAP):
        violated("free neighbours are one tile", f"{describe_tile(before)} and {describe_tile(tile)}")
    if tile.state == TILE_GAP:
        if tile.view != NULL or tile.block.size % GRANULE != 0 or tile.block.mapped:
            violated("gaps are whole granules without memory", describe_tile(tile))
    elif tile.view == NULL or not (tile.view.address <= tile.block.address < view_end(tile.view)) \
            or tile.view.region != region or not tile.block.mapped:
        violated("a tile knows the view under its first byte", describe_tile(tile))
    if (tile.state == TILE_USED) == is_idle(&tile.block):
        violated("tiles in use are allocated, or wait", describe_tile(tile))
    if tile.state == TILE_SHADOW and (tile.user == NULL or tile.user.state != TILE_USED):
        violated("a shadow has a user", describe_tile(tile))
    return 0


cdef int check_region(Arena* arena, Region* region) except -1:
    cdef Tile* tile = <Tile*> region.range.head
    cdef Tile* before = NULL
    cdef View* view = region.first_view
    cdef View* last = NULL
    cdef uint64_t at = region.range.base
    while tile != NULL:
        if tile.block.address != at or tile_before(tile) != before:
            violated("tiles tile their region", f"{describe_tile(tile)} stands where {at:#x} should begin")
        check_tile(region, tile)
        at = tile_end(tile)
        before = tile
        tile = tile_behind(tile)
    if at != region.range.base + region.range.size or region.last != before or region.range.size > region.room:
        violated("tiles tile their region", f"region {region.number} goes up to {region.range.size} of {region.room}")
    if before != NULL and before.state == TILE_GAP:
        violated("no region ends in a gap", describe_tile(before))
    seen = set()
    while view != NULL:
        if view.before != last or view.region != region or (last != NULL and view.address < view_end(last)):
            violated("views follow each other", f"{view.address:#x} of region {region.number}")
        if view.chunk.number in seen:
            violated("a chunk has one view in a region", f"chunk {view.chunk.number} in region {region.number}")
        seen.add(view.chunk.number)
        last = view
        view = view.behind
    if region.last_view != last:
        violated("a region knows its last view", f"region {region.number}")
    return 0


# --- chunks ---------------------------------------------------------------------------------------------------------

cdef list used_in(Arena* arena, View* view, dict tiles, uint64_t* live):
    """Return what a view shows as used: (offset, size, user) of each run, and the bytes used through this view."""
    found = []
    live[0] = 0
    for begin, end, state, user, _ in tiles[view.region.number]:
        low, high = max(begin, <uint64_t> view.address), min(end, <uint64_t> view_end(view))
        if low >= high:
            continue
        if state == TILE_GAP:
            violated("views are mapped", f"{view.address:#x} lies over a gap")
        if state == TILE_USED:
            live[0] += high - low
        if state != TILE_FREE:
            found.append((low - view.address, high - low, user))
    return found


cdef int check_chunk(Arena* arena, DenseChunk* chunk, dict tiles) except -1:
    cdef View* view = chunk.home
    cdef uint64_t live, total = 0
    cdef count_t count = 0
    first = None
    if view == NULL:
        violated("every chunk has a home", f"chunk {chunk.number}")
    while view != NULL:
        if view.chunk != chunk:
            violated("a view knows its chunk", f"chunk {chunk.number}")
        used = used_in(arena, view, tiles, &live)
        if first is None:
            first = used
        elif used != first:
            violated("all views of a chunk agree",
                   f"chunk {chunk.number}: {first} at home, {used} in region {view.region.number}")
        if live != view.live:
            violated("a view knows what is used through it", f"{view.live} noted, {live} found")
        total += live
        count += 1
        view = view.next_of_chunk
    if total != chunk.live or sum(size for _, size, _ in first) != chunk.live:
        violated("a chunk knows what is used of it", f"chunk {chunk.number}: {chunk.live} noted, {total} found")
    if count != chunk.view_count or chunk.size % GRANULE != 0 or (arena.is_private and count != 1):
        violated("a chunk counts its views", f"chunk {chunk.number}: {chunk.view_count} noted, {count} found")
    return 0


# --- clocks -----------------------------------------------------------------------------------------------------------

cdef bint holds(const Clock* clock, const StreamRecord* stream, uint64_t moment) noexcept:
    cdef int i
    for i in range(clock.count):
        if clock.streams[i] == stream and clock.moments[i] >= moment:
            return True
    return clock.everyone >= moment


cdef int check_clock(const Tile* tile, const Clock* freed) except -1:
    cdef int i
    for i in range(freed.count):
        if freed.moments[i] > freed.streams[i].done and not holds(&tile.clock, freed.streams[i], freed.moments[i]):
            violated("a free tile's clock holds the last free of its bytes, whichever view they were used through",
                   f"{describe_tile(tile)} of stream {freed.streams[i].handle} at {freed.moments[i]}")
    if freed.everyone > tile.clock.everyone:
        violated("a free tile's clock holds what was folded", describe_tile(tile))
    return 0


cdef int check_clocks(Arena* arena, const DenseChunk* chunk, dict tiles) except -1:
    cdef View* view = chunk.home
    cdef const LastFree* freed
    cdef size_t i
    while view != NULL:
        free = [row for row in tiles[view.region.number]
                if row[2] == TILE_FREE and row[0] < <uint64_t> view_end(view) and row[1] > <uint64_t> view.address]
        for i in range(chunk.last_free_count):
            freed = &chunk.last_frees[i]
            for begin, end, _, _, tile in free:
                if begin < view.address + freed.end and end > view.address + freed.begin:
                    check_clock(<const Tile*> <size_t> tile, &freed.clock)
        view = view.next_of_chunk
    return 0


# --- indexes --------------------------------------------------------------------------------------------------------

cdef bytes_t check_longest(Node* node, Node* up, set found) except? 0:
    cdef bytes_t longest
    if node == NULL:
        return 0
    if node.up != up or not node.inside or (up != NULL and up.weight < node.weight):
        violated("tree links agree", describe_tile(node.tile))
    if (node.low != NULL and (node.low.rank, node.low.place) >= (node.rank, node.place)) or (
            node.high != NULL and (node.high.rank, node.high.place) <= (node.rank, node.place)):
        violated("trees are in order", describe_tile(node.tile))
    longest = max(node.size, check_longest(node.low, node, found), check_longest(node.high, node, found))
    if longest != node.longest:
        violated("a tree knows its longest tile", describe_tile(node.tile))
    found.add((node.rank, node.place))
    return longest


cdef int check_indexes(Arena* arena) except -1:
    cdef Region* region
    cdef Tile* tile
    cdef Tile* neighbour
    cdef size_t i
    cdef int side
    free, sizes, neighbours, gaps = set(), set(), set(), set()
    if arena.seed == 0:
        violated("weights are random", "the arena's weights are all zero, so its trees are lists")
    for i in range(arena.region_count):
        region = arena.regions[i]
        tile = <Tile*> region.range.head
        while tile != NULL:
            if tile.state == TILE_FREE:
                place = place_of(region, tile.block.address)
                free.add((0, place))
                if tile.by_place.size != tile.block.size or tile.by_place.tile != tile:
                    violated("the index by place knows sizes", describe_tile(tile))
                if tile.block.size >= LARGE_TILE and tile != arena.loose:
                    sizes.add((tile.block.size, place))
                for side in range(2):
                    neighbour = tile_before(tile) if side == 0 else tile_behind(tile)
                    if neighbour != NULL and neighbour.state == TILE_USED and neighbour.block.size >= LARGE_TILE:
                        neighbours.add((neighbour.block.size, place << 1 | side))
            elif tile.state == TILE_GAP:
                gaps.add((0, place_of(region, tile.block.address)))
                if tile.by_place.size != tile.block.size:
                    violated("the index of gaps knows sizes", describe_tile(tile))
            tile = tile_behind(tile)
    if gaps != indexed(arena.gaps):
        violated("the index of gaps holds them", f"{sorted(gaps)}, {sorted(indexed(arena.gaps))}")
    for name, wanted, found in (("place", free, indexed(arena.free_tiles)), ("size", sizes, indexed(arena.sizes)),
                                ("neighbour", neighbours, indexed(arena.neighbours))):
        if found - wanted or (wanted - found and (name == "place" or not arena.lacks_aids)):
            violated(f"the index by {name} holds the free tiles",
                   f"missing {sorted(wanted - found)}, too many {sorted(found - wanted)}")
    return 0


cdef set indexed(Node* root):
    found = set()
    check_longest(root, NULL, found)
    return found


# --- all ------------------------------------------------------------------------------------------------------------

cdef dict tiles_by_region(Arena* arena):
    """Return (begin, end, state, user, tile) of every tile, by region."""
    cdef Tile* tile
    cdef size_t i
    found = {}
    for i in range(arena.region_count):
        row = found[arena.regions[i].number] = []
        tile = <Tile*> arena.regions[i].range.head
        while tile != NULL:
            user = <size_t> (tile.user if tile.state == TILE_SHADOW else tile)
            row.append((tile.block.address, tile_end(tile), tile.state, user, <size_t> tile))
            tile = tile_behind(tile)
    return found


cdef int check_sums(Arena* arena, Totals* totals) except -1:
    cdef DenseChunk* chunk = arena.first_chunk
    cdef bytes_t reserved = 0
    cdef bytes_t active = 0
    count = 0
    while chunk != NULL:
        reserved += chunk.size
        active += chunk.live
        count += 1
        if 0 < chunk.live < chunk.size:
            totals.inactive_split[LARGE] += 1
            totals.inactive_split_bytes[LARGE] += chunk.size - chunk.live
        chunk = chunk.next
    totals.segment[LARGE] += count
    if count != arena.chunk_count or reserved != arena.reserved or reserved != arena.pool.reserved_bytes:
        violated("an arena knows what it has reserved", f"{arena.reserved} noted, {reserved} found")
    if active != arena.active or (not arena.is_private and arena.peak < active):
        violated("an arena knows what is in use", f"{arena.active} noted, {active} found, {arena.peak} at most")
    return 0


cdef int check_arena(Arena* arena, Totals* totals) except -1:
    cdef DenseChunk* chunk = arena.first_chunk
    cdef size_t i
    for i in range(arena.region_count):
        check_region(arena, arena.regions[i])
    tiles = tiles_by_region(arena)
    while chunk != NULL:
        check_chunk(arena, chunk, tiles)
        check_clocks(arena, chunk, tiles)
        chunk = chunk.next
    check_indexes(arena)
    arena.witnessed = True
    return check_sums(arena, totals)
