from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free

from allotment._core.contract.table cimport OK, OUT_OF_MEMORY, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, count_t, device_t, stream_t
from allotment._core.mechanism.captures cimport end_relaxed_capture, relax_capture
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.pool cimport count_reserved
from allotment._core.model.model cimport Engine, Failure, Pool
from allotment._core.placement.dense.arena cimport Piece
from allotment._core.placement.dense.structures cimport (
    GRANULE, TILE_FREE, TILE_GAP, TILE_SHADOW, TILE_USED, Arena, DenseChunk, Leftover, Node, Region, Space, Tile, View,
    place_of, tile_before, tile_behind, tile_end, view_end, whole_granules)
from allotment._core.placement.dense.tile cimport append_free, free_tile_at, gap_settle, tile_append, tile_cut
from allotment._core.placement.dense.tile_index cimport node_from, node_up_to
from allotment._core.records.stats cimport LARGE, tally_down, tally_up
from allotment._core.records.trace cimport ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP, trace_report
from allotment._core.tools.arrays cimport make_room, make_room_for
from allotment._core.tools.slab cimport slab_clear, slab_give, slab_init, slab_reserve, slab_take

cdef bytes_t SMALLEST_REGION = <bytes_t> 4 << 30


cdef Arena* arena_make(Engine* engine, Pool* pool, bint is_private) noexcept nogil:
    cdef Arena* arena = <Arena*> calloc(1, sizeof(Arena))
    if arena != NULL:
        arena.engine = engine
        arena.pool = pool
        arena.is_private = is_private
        arena.loading = True
        arena.seed = 2463534242
        slab_init(&arena.tiles, sizeof(Tile))
        slab_init(&arena.nodes, sizeof(Node))
        slab_init(&arena.chunks, sizeof(DenseChunk))
        slab_init(&arena.views, sizeof(View))
    return arena


cdef void arena_clear(Arena* arena) noexcept nogil:
    """Its own records."""
    cdef size_t i
    for i in range(arena.region_count):
        free(arena.regions[i])
    free(arena.regions)
    free(arena.spaces)
    free(arena.leftovers)
    slab_clear(&arena.tiles)
    slab_clear(&arena.nodes)
    slab_clear(&arena.chunks)
    slab_clear(&arena.views)
    free(arena)


# --- addresses ----------------------------------------------------------------------------------------------------

cdef bytes_t addresses_left(const Region* region) noexcept nogil:
    return region.range.size - region.filled if region.leftovers == 0 else 0


cdef bytes_t region_size(const Arena* arena, bytes_t size) noexcept nogil:
    cdef bytes_t total = arena.engine.total_memory
    if arena.region_count == 0:
        return whole_granules(2 * total)
    return whole_granules(max(8 * size, min(SMALLEST_REGION, total)))


cdef bint carve(Arena* arena, bytes_t size, stream_t stream, address_t* base, Failure* failure) noexcept nogil:
    """Addresses for a region, of those reserved or newly reserved ones."""
    cdef DeviceTable* table = arena.engine.table
    cdef Space* space = &arena.spaces[arena.space_count - 1] if arena.space_count > 0 else NULL
    cdef bytes_t wanted
    cdef status_t status
    if space == NULL or space.size - space.used < size:
        if not make_room(<void**> &arena.spaces, &arena.space_room, arena.space_count, sizeof(Space)):
            return host_memory_failed(failure)
        space = &arena.spaces[arena.space_count]
        wanted = size if arena.is_private else max(size, whole_granules(8 * arena.engine.total_memory))
        status = table.range_reserve(table.self, wanted, stream, &space.base)
        if status != OK:
            return device_failed(failure, status, b"range_reserve")
        space.size = wanted
        space.used = 0
        arena.space_count += 1
    base[0] = space.base + space.used
    space.used += size
    return True


cdef Region* region_make(Arena* arena, bytes_t size, stream_t stream, Failure* failure) noexcept nogil:
    """A region with room for `size` bytes and more."""
    cdef Region* region
    cdef bytes_t wanted = region_size(arena, size)
    if not make_room(<void**> &arena.regions, &arena.region_room, arena.region_count, sizeof(Region*)):
        host_memory_failed(failure)
        return NULL
    region = <Region*> calloc(1, sizeof(Region))
    if region == NULL:
        host_memory_failed(failure)
        return NULL
    if wanted < size or not carve(arena, wanted, stream, &region.range.base, failure):
        if wanted < size:
            device_failed(failure, OUT_OF_MEMORY, b"range_reserve")
        free(region)
        return NULL
    region.number = arena.region_count
    region.range.size = wanted
    region.range.page = GRANULE         # not a plain segment
    region.range.shelf = arena.pool.large.recent
    arena.regions[arena.region_count] = region
    arena.region_count += 1
    return region


# --- what a chunk holds -------------------------------------------------------------------------------------------

cdef Tile* free_tile_in(Arena* arena, const View* view) noexcept nogil:
    """The first free tile that has a byte of a view, or NULL."""
    cdef Node* node = node_up_to(arena.free_tiles, 0, place_of(view.region, view.address))
    if node != NULL and node.tile.block.range == &view.region.range and tile_end(node.tile) > view.address:
        return node.tile
    node = node_from(arena.free_tiles, 0, place_of(view.region, view.address))
    if node != NULL and node.tile.block.range == &view.region.range and node.tile.block.address < view_end(view):
        return node.tile
    return NULL


cdef Tile* first_tile_in(Arena* arena, const View* view) noexcept nogil:
    """The tile under the first byte of a view. pre: some byte of it is free"""
    cdef Tile* tile = free_tile_in(arena, view)
    while tile.block.address > view.address:
        tile = tile_before(tile)
    return tile


cdef void free_ends(Arena* arena, const DenseChunk* chunk, bytes_t* head, bytes_t* tail) noexcept nogil:
    """The free bytes at the beginning and at the end of a chunk."""
    cdef const View* view = chunk.home
    cdef address_t end = view_end(view)
    cdef Node* node
    cdef Tile* tile
    head[0] = tail[0] = 0
    node = node_up_to(arena.free_tiles, 0, place_of(view.region, view.address))
    if node != NULL and node.tile.block.range == &view.region.range and tile_end(node.tile) > view.address:
        head[0] = min(tile_end(node.tile), end) - view.address
    node = node_up_to(arena.free_tiles, 0, place_of(view.region, end - 512))
    if node != NULL and node.tile.block.range == &view.region.range:
        tile = node.tile
        if tile_end(tile) >= end:
            tail[0] = end - max(tile.block.address, view.address)


# --- growing ------------------------------------------------------------------------------------------------------

cdef void forget_chunk(Arena* arena, DenseChunk* chunk) noexcept nogil:
    if chunk.prev != NULL:
        chunk.prev.next = chunk.next
    else:
        arena.first_chunk = chunk.next
    if chunk.next != NULL:
        chunk.next.prev = chunk.prev
    else:
        arena.last_chunk = chunk.prev
    arena.chunk_count -= 1
    slab_give(&arena.chunks, chunk)


cdef void count_memory(Arena* arena, bytes_t size, bint more) noexcept nogil:
    if more:
        arena.reserved += size
    else:
        arena.reserved -= size
    count_reserved(arena.engine, &arena.pool.large, <count_t> size if more else -(<count_t> size))


cdef void keep_leftover(Arena* arena, Region* region, address_t address, const DenseChunk* chunk,
                        bint created) noexcept nogil:
    """pre: there is room for it"""
    cdef Leftover* leftover = &arena.leftovers[arena.leftover_count]
    arena.leftover_count += 1
    leftover.region = region
    leftover.address = address
    leftover.handle = chunk.handle
    leftover.size = chunk.size
    leftover.created = created
    if region != NULL:
        region.leftovers += 1


cdef void undo(Arena* arena, Region* region, Piece* pieces, bint* created, size_t created_count,
               size_t mapped_count) noexcept nogil:
    """Unmap the first pieces, and release those that were created."""
    cdef DeviceTable* table = arena.engine.table
    cdef address_t address = region.range.base + region.filled
    cdef bint mapped
    cdef size_t i
    for i in range(created_count):
        mapped = i < mapped_count and table.unmap(table.self, address, pieces[i].size) != OK
        if mapped:
            keep_leftover(arena, region, address, pieces[i].chunk, created[i])
        elif created[i] and table.chunk_release(table.self, pieces[i].chunk.handle, pieces[i].size) != OK:
            keep_leftover(arena, NULL, 0, pieces[i].chunk, True)
        if created[i]:
            slab_give(&arena.chunks, pieces[i].chunk)
            pieces[i].chunk = NULL
        address += pieces[i].size


cdef bint give_access(Arena* arena, address_t address, bytes_t size, Failure* failure) noexcept nogil:
    cdef Engine* engine = arena.engine
    cdef DeviceTable* table = engine.table
    cdef status_t status = OK
    cdef int peer
    if table.set_access == NULL:
        return True
    status = table.set_access(table.self, address, size, table.device)
    for peer in range(engine.peer_count):
        if status == OK:
            status = table.set_access(table.self, address, size, engine.peers[peer])
    return True if status == OK else device_failed(failure, status, b"set_access")


cdef bint ask_device(Arena* arena, Region* region, Piece* pieces, size_t count, bint* created,
                     Failure* failure) noexcept nogil:
    """Create what is to be created and map all pieces; all of them or none. pre: records are reserved"""
    cdef DeviceTable* table = arena.engine.table
    cdef address_t base = region.range.base + region.filled
    cdef address_t address = base
    cdef DenseChunk* chunk
    cdef status_t status
    cdef size_t i
    for i in range(count):
        created[i] = pieces[i].chunk == NULL
        if created[i]:
            chunk = <DenseChunk*> slab_take(&arena.chunks)
            chunk.size = pieces[i].size
            status = table.chunk_create(table.self, chunk.size, &chunk.handle)
            if status != OK:
                slab_give(&arena.chunks, chunk)
                undo(arena, region, pieces, created, i, 0)
                return device_failed(failure, status, b"chunk_create")
            pieces[i].chunk = chunk
    for i in range(count):
        status = table.map(table.self, address, pieces[i].size, pieces[i].chunk.handle)
        if status != OK:
            undo(arena, region, pieces, created, count, i)
            return device_failed(failure, status, b"map")
        address += pieces[i].size
    if not give_access(arena, base, address - base, failure):
        undo(arena, region, pieces, created, count, count)
        return False
    return True


cdef View* add_view(Arena* arena, Region* region, DenseChunk* chunk) noexcept nogil:
    cdef View* view = <View*> slab_take(&arena.views)
    cdef View** link = &chunk.home
    view.chunk = chunk
    view.region = region
    view.address = region.range.base + region.filled
    view.live = 0
    view.last_use = arena.requests
    view.before = region.last_view
    view.behind = view.next_of_chunk = NULL
    if region.last_view != NULL:
        region.last_view.behind = view
    else:
        region.first_view = view
    region.last_view = view
    while link[0] != NULL:
        link = &link[0].next_of_chunk
    link[0] = view
    chunk.view_count += 1
    arena.counts.views += 1
    arena.counts.views_most = max(arena.counts.views_most, arena.counts.views)
    return view


cdef void show_new(Arena* arena, Region* region, DenseChunk* chunk, stream_t stream, uint32_t context) noexcept nogil:
    """A chunk that was created becomes free memory at the end of a region."""
    cdef View* view
    chunk.live = 0
    chunk.number = arena.numbered
    chunk.home = NULL
    chunk.view_count = 0
    chunk.next = NULL
    chunk.prev = arena.last_chunk
    if arena.last_chunk != NULL:
        arena.last_chunk.next = chunk
    else:
        arena.first_chunk = chunk
    arena.last_chunk = chunk
    arena.chunk_count += 1
    arena.numbered += 1
    view = add_view(arena, region, chunk)
    append_free(arena, region, chunk.size, view, NULL)
    count_memory(arena, chunk.size, True)
    arena.pool.malloc_count += 1
    tally_up(&arena.engine.stats.segment, LARGE, 1)
    arena.engine.stats.device_allocs += 1
    trace_report(&arena.engine.trace, ACTION_SEGMENT_MAP, view.address, chunk.size, stream,
                 arena.pool.first, arena.pool.second, context)


cdef void show_again(Arena* arena, Region* region, DenseChunk* chunk) noexcept nogil:
    """One more view of a chunk: what is free of it is free there too, the rest is the shadow of its users."""
    cdef View* source = chunk.home
    cdef Tile* tile = first_tile_in(arena, source)
    cdef View* view = add_view(arena, region, chunk)
    cdef address_t end = view_end(source)
    cdef bytes_t part
    cdef Tile* copy
    while tile != NULL and tile.block.address < end:
        part = min(tile_end(tile), end) - max(tile.block.address, source.address)
        if tile.state == TILE_FREE:
            append_free(arena, region, part, view, &tile.clock)
        else:
            copy = tile_append(arena, region, part, TILE_SHADOW, view)
            copy.user = tile if tile.state == TILE_USED else tile.user
            copy.next_shadow = copy.user.user
            copy.user.user = copy
        tile = tile_behind(tile)


cdef uint64_t tiles_in(Arena* arena, const DenseChunk* chunk) noexcept nogil:
    cdef Tile* tile = first_tile_in(arena, chunk.home)
    cdef address_t end = view_end(chunk.home)
    cdef uint64_t count = 0
    while tile != NULL and tile.block.address < end:
        count += 1
        tile = tile_behind(tile)
    return count


cdef bint arena_extend(Arena* arena, Region* region, Piece* pieces, size_t count, stream_t stream, uint32_t context,
                       Failure* failure) noexcept nogil:
    """Map pieces, one behind the other, at the end of a region; all of them or none. Pieces created get their chunk.

    pre: the region has the addresses; no piece is a chunk that it shows already
    """
    cdef uint64_t tiles = 0
    cdef bint* created = <bint*> calloc(count, sizeof(bint))
    cdef bint relaxed, ok
    cdef size_t i
    for i in range(count):
        tiles += 1 if pieces[i].chunk == NULL else tiles_in(arena, pieces[i].chunk)
    if not (created != NULL and slab_reserve(&arena.chunks, count) and slab_reserve(&arena.views, count)
            and slab_reserve(&arena.tiles, tiles)
            and make_room_for(<void**> &arena.leftovers, &arena.leftover_room, arena.leftover_count + count,
                              sizeof(Leftover))):
        free(created)
        return host_memory_failed(failure)
    relaxed = relax_capture(arena.engine, stream)
    ok = ask_device(arena, region, pieces, count, created, failure)
    end_relaxed_capture(arena.engine, relaxed)
    if ok:
        for i in range(count):
            if created[i]:
                show_new(arena, region, pieces[i].chunk, stream, context)
            else:
                show_again(arena, region, pieces[i].chunk)
    free(created)
    return ok


# --- giving back --------------------------------------------------------------------------------------------------

cdef void forget_view(Arena* arena, View* view) noexcept nogil:
    """A view was unmapped: its addresses are a gap. pre: all of it is free; two tile records are reserved"""
    cdef Region* region = view.region
    cdef DenseChunk* chunk = view.chunk
    cdef View** link = &chunk.home
    cdef Tile* gap = tile_cut(arena, free_tile_at(arena, region, view.address), view.address, chunk.size, TILE_GAP)
    while link[0] != view:
        link = &link[0].next_of_chunk
    link[0] = view.next_of_chunk
    chunk.view_count -= 1
    if view.before != NULL:
        view.before.behind = view.behind
    else:
        region.first_view = view.behind
    if view.behind != NULL:
        view.behind.before = view.before
    else:
        region.last_view = view.before
    gap_settle(arena, gap)
    slab_give(&arena.views, view)
    arena.counts.views -= 1


cdef bint release_chunk(Arena* arena, DenseChunk* chunk, uint32_t context, Failure* failure) noexcept nogil:
    """Unmap and release a chunk that is wholly free. A refusal leaves it with the views it still has."""
    cdef Engine* engine = arena.engine
    cdef DeviceTable* table = engine.table
    cdef address_t home = chunk.home.address
    cdef status_t status
    if not make_room(<void**> &arena.leftovers, &arena.leftover_room, arena.leftover_count, sizeof(Leftover)):
        return host_memory_failed(failure)
    while chunk.home != NULL:
        if not slab_reserve(&arena.tiles, 2):
            return host_memory_failed(failure)
        status = table.unmap(table.self, chunk.home.address, chunk.size)
        if status != OK:
            return device_failed(failure, status, b"unmap")
        forget_view(arena, chunk.home)
    engine.stats.device_frees += 1
    tally_down(&engine.stats.segment, LARGE, 1)
    arena.pool.malloc_count -= 1
    count_memory(arena, chunk.size, False)
    trace_report(&engine.trace, ACTION_SEGMENT_UNMAP, home, chunk.size, 0, arena.pool.first, arena.pool.second, context)
    status = table.chunk_release(table.self, chunk.handle, chunk.size)
    if status != OK:
        keep_leftover(arena, NULL, 0, chunk, True)
    forget_chunk(arena, chunk)
    return True if status == OK else device_failed(failure, status, b"chunk_release")


cdef bint drop_leftovers(Arena* arena, Failure* failure) noexcept nogil:
    """Ask the device once more to take back what it would not; whether it took all."""
    cdef DeviceTable* table = arena.engine.table
    cdef Leftover* leftover
    cdef status_t status = OK
    cdef size_t i = 0
    while i < arena.leftover_count:
        leftover = &arena.leftovers[i]
        if leftover.region != NULL:
            status = table.unmap(table.self, leftover.address, leftover.size)
            if status != OK:
                return device_failed(failure, status, b"unmap")
            leftover.region.leftovers -= 1
            leftover.region = NULL
        if leftover.created:
            status = table.chunk_release(table.self, leftover.handle, leftover.size)
            if status != OK:
                return device_failed(failure, status, b"chunk_release")
        arena.leftover_count -= 1
        arena.leftovers[i] = arena.leftovers[arena.leftover_count]
    return True


cdef bint arena_trim(Arena* arena, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    """Release wholly free chunks until no more than `keep` bytes are held. pre: the device has finished with them"""
    cdef DenseChunk* chunk = arena.first_chunk
    cdef DenseChunk* following
    if not drop_leftovers(arena, failure):
        return False
    while chunk != NULL and arena.reserved > keep:
        following = chunk.next
        if chunk.live == 0 and not release_chunk(arena, chunk, context, failure):
            return False
        chunk = following
    return True if arena.chunk_count > 0 else arena_retire(arena, failure)


cdef bint arena_retire(Arena* arena, Failure* failure) noexcept nogil:
    """Give the addresses back. pre: it holds no memory"""
    cdef DeviceTable* table = arena.engine.table
    cdef status_t status
    cdef size_t i
    if arena.leftover_count > 0 and not drop_leftovers(arena, failure):
        return False
    for i in range(arena.region_count):
        free(arena.regions[i])
    arena.region_count = 0
    for i in range(arena.space_count):
        arena.spaces[i].used = 0
    while arena.space_count > 0:
        status = table.range_release(table.self, arena.spaces[arena.space_count - 1].base,
                                       arena.spaces[arena.space_count - 1].size)
        if status != OK:
            return device_failed(failure, status, b"range_release")
        arena.space_count -= 1
    return True


cdef bint arena_grant(Arena* arena, device_t device, Failure* failure) noexcept nogil:
    """Let another device at everything that is mapped now."""
    cdef DeviceTable* table = arena.engine.table
    cdef View* view
    cdef status_t status
    cdef size_t i
    for i in range(arena.region_count):
        view = arena.regions[i].first_view
        while view != NULL:
            status = table.set_access(table.self, view.address, view.chunk.size, device)
            if status != OK:
                return device_failed(failure, status, b"set_access")
            view = view.behind
    return True
