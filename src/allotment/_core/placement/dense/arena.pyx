from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, qsort

from allotment._core.contract.table cimport OK, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, count_t, device_t, stream_t
from allotment._core.mechanism.captures cimport end_relaxed_capture, relax_capture
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.pool cimport count_reserved
from allotment._core.model.model cimport NO_FAILURE, Engine, Failure, Pool
from allotment._core.placement.dense.arena cimport Piece
from allotment._core.placement.dense.clocks cimport ask_streams, clock_is_over, probes_clear, see_past
from allotment._core.placement.dense.moves cimport report_new_home
from allotment._core.placement.dense.structures cimport (
    GRANULE, TILE_FREE, TILE_SHADOW, TILE_USED, Arena, DenseChunk, Leftover, Node, Region, Space, Tile, View, place_of,
    tile_behind, tile_end, view_end, whole_granules)
from allotment._core.placement.dense.tile cimport (
    append_free, fill_gap, tile_append, tile_at, tile_drop_free, tiles_vanish)
from allotment._core.placement.dense.tile_index cimport node_up_to
from allotment._core.records.stats cimport LARGE, tally_down, tally_up
from allotment._core.records.trace cimport ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP, trace_report
from allotment._core.tools.arrays cimport make_room, make_room_for
from allotment._core.tools.slab cimport slab_clear, slab_give, slab_init, slab_reserve, slab_take

cdef bytes_t SMALLEST_REGION = <bytes_t> 4 << 30
cdef bytes_t FIRST_REGION = <bytes_t> 16 << 30

cdef enum:
    SOON = 10000                # requests: a view needed again within this many was dropped too early
    RAISED_MOST = 16            # views: a limit this high is not raised


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
    """Free its records."""
    cdef size_t i
    while arena.first_chunk != NULL:
        forget_chunk(arena, arena.first_chunk)
    for i in range(arena.region_count):
        free(arena.regions[i])
    probes_clear(arena)
    free(arena.probes)
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
    return region.room - region.range.size if region.leftovers == 0 else 0


cdef bytes_t region_size(const Arena* arena, bytes_t size, bint is_main) noexcept nogil:
    """Return how many addresses to reserve for a region that begins with `size` bytes.

    An arena begins with few addresses: a process can have many allocators and pools, and each of them could grow to all
    of the device's memory. If the first main region is full, the next one is large enough for all memory.
    """
    cdef bytes_t total = arena.engine.total_memory
    if arena.region_count == 0 or arena.is_private:
        return whole_granules(max(size, min(2 * total, max(total // 4, FIRST_REGION))))
    if is_main:
        return whole_granules(max(size, 2 * total))
    return whole_granules(max(8 * size, min(SMALLEST_REGION, total)))


cdef bint reserve_space(Arena* arena, bytes_t size, stream_t stream, Failure* failure) noexcept nogil:
    """Reserve addresses. pre: there is room for one more space"""
    cdef DeviceTable* table = arena.engine.table
    cdef Space* space = &arena.spaces[arena.space_count]
    cdef status_t status
    arena.counts.reserve += 1
    status = table.range_reserve(table.self, size, stream, &space.base)
    if status != OK:
        return device_failed(failure, status, b"range_reserve")
    space.size = size
    space.used = 0
    arena.space_count += 1
    return True


cdef bint carve(Arena* arena, bytes_t size, stream_t stream, address_t* base, Failure* failure) noexcept nogil:
    """Take addresses for a region from those already reserved, or reserve new ones.

    An arena that needs more than its first region reserves enough for many regions, to avoid frequent device calls.
    """
    cdef Space* space = &arena.spaces[arena.space_count - 1] if arena.space_count > 0 else NULL
    cdef bytes_t many = whole_granules(8 * arena.engine.total_memory)
    if space == NULL or space.size - space.used < size:
        if not make_room(<void**> &arena.spaces, &arena.space_room, arena.space_count, sizeof(Space)):
            return host_memory_failed(failure)
        if arena.is_private or arena.region_count == 0 or many <= size or not reserve_space(
                arena, many, stream, failure):
            if not reserve_space(arena, size, stream, failure):
                return False
        space = &arena.spaces[arena.space_count - 1]
    base[0] = space.base + space.used
    space.used += size
    return True


cdef Region* empty_region(Arena* arena, bytes_t size) noexcept nogil:
    """Return the first region without views that has room for `size` bytes; NULL if none."""
    cdef Region* region
    cdef size_t i
    for i in range(arena.region_count):
        region = arena.regions[i]
        if region.first_view == NULL and not region.is_main and size <= addresses_left(region):
            return region
    return NULL


cdef Region* region_make(Arena* arena, bytes_t size, bint is_main, stream_t stream, Failure* failure) noexcept nogil:
    """Return an empty region with room for `size` bytes; a new one has more if the device has the addresses.

    With `is_main` the region is always a new one, and the arena puts new memory there from now on.
    """
    cdef Region* region = empty_region(arena, size) if not is_main else NULL
    cdef bytes_t wanted = region_size(arena, size, is_main)
    if region != NULL:
        return region
    if not make_room(<void**> &arena.regions, &arena.region_room, arena.region_count, sizeof(Region*)):
        host_memory_failed(failure)
        return NULL
    region = <Region*> calloc(1, sizeof(Region))
    if region == NULL:
        host_memory_failed(failure)
        return NULL
    if wanted < size or not carve(arena, wanted, stream, &region.range.base, failure):
        wanted = size
        if not carve(arena, wanted, stream, &region.range.base, failure):
            free(region)
            return NULL
    failure.reason = NO_FAILURE
    region.room = wanted
    region.is_main = is_main
    if is_main:
        arena.main = region
    add_region(arena, region)
    return region


cdef void add_region(Arena* arena, Region* region) noexcept nogil:
    """pre: there is room for it"""
    region.number = arena.region_count
    region.range.page = GRANULE         # not a plain segment
    region.range.free_list = arena.pool.large.recent
    region.range.prev = &arena.regions[arena.region_count - 1].range if arena.region_count > 0 else NULL
    if region.range.prev != NULL:
        region.range.prev.next = &region.range
    arena.regions[arena.region_count] = region
    arena.region_count += 1


# --- what a chunk holds -------------------------------------------------------------------------------------------

cdef void free_ends(Arena* arena, const DenseChunk* chunk, bytes_t* head, bytes_t* tail) noexcept nogil:
    """Return the number of free bytes at the beginning and at the end of a chunk."""
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
    free(chunk.last_frees)
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


cdef status_t unmap(Arena* arena, address_t address, bytes_t size) noexcept nogil:
    arena.counts.unmap += 1
    return arena.engine.table.unmap(arena.engine.table.self, address, size)


cdef status_t chunk_release(Arena* arena, chunk_t chunk, bytes_t size) noexcept nogil:
    arena.counts.release += 1
    return arena.engine.table.chunk_release(arena.engine.table.self, chunk, size)


cdef void undo(Arena* arena, Region* region, address_t address, Piece* pieces, bint* created, size_t created_count,
               size_t mapped_count) noexcept nogil:
    """Unmap the first pieces, which begin at an address, and release those that were created."""
    cdef bint mapped
    cdef size_t i
    for i in range(created_count):
        mapped = i < mapped_count and unmap(arena, address, pieces[i].size) != OK
        if mapped:
            keep_leftover(arena, region, address, pieces[i].chunk, created[i])
        elif created[i] and chunk_release(arena, pieces[i].chunk.handle, pieces[i].size) != OK:
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
    arena.counts.access += 1 + engine.peer_count
    status = table.set_access(table.self, address, size, table.device)
    for peer in range(engine.peer_count):
        if status == OK:
            status = table.set_access(table.self, address, size, engine.peers[peer])
    return True if status == OK else device_failed(failure, status, b"set_access")


cdef bint ask_device(Arena* arena, Region* region, address_t base, Piece* pieces, size_t count, bint* created,
                     Failure* failure) noexcept nogil:
    """Create the missing chunks and map all pieces; all or none. pre: records are reserved"""
    cdef DeviceTable* table = arena.engine.table
    cdef address_t address = base
    cdef DenseChunk* chunk
    cdef status_t status
    cdef size_t i
    for i in range(count):
        created[i] = pieces[i].chunk == NULL
        if created[i]:
            chunk = <DenseChunk*> slab_take(&arena.chunks)
            chunk.size = pieces[i].size
            arena.counts.create += 1
            status = table.chunk_create(table.self, chunk.size, &chunk.handle)
            if status != OK:
                slab_give(&arena.chunks, chunk)
                undo(arena, region, base, pieces, created, i, 0)
                return device_failed(failure, status, b"chunk_create")
            pieces[i].chunk = chunk
    for i in range(count):
        arena.counts.map += 1
        status = table.map(table.self, address, pieces[i].size, pieces[i].chunk.handle)
        if status != OK:
            undo(arena, region, base, pieces, created, count, i)
            return device_failed(failure, status, b"map")
        address += pieces[i].size
    if not give_access(arena, base, address - base, failure):
        undo(arena, region, base, pieces, created, count, count)
        return False
    return True


cdef View* add_view(Arena* arena, Region* region, DenseChunk* chunk, address_t address) noexcept nogil:
    cdef View* view = <View*> slab_take(&arena.views)
    cdef View** link = &chunk.home
    view.chunk = chunk
    view.region = region
    view.address = address
    view.live = view.freed = 0
    view.last_use = arena.requests
    view.next_of_chunk = view.behind = NULL
    view.before = region.last_view
    while view.before != NULL and view.before.address > address:
        view.behind = view.before
        view.before = view.before.before
    if view.before != NULL:
        view.before.behind = view
    else:
        region.first_view = view
    if view.behind != NULL:
        view.behind.before = view
    else:
        region.last_view = view
    while link[0] != NULL:
        link = &link[0].next_of_chunk
    link[0] = view
    chunk.view_count += 1
    arena.counts.views += 1
    arena.counts.views_most = max(arena.counts.views_most, arena.counts.views)
    return view


cdef inline address_t region_end(const Region* region) noexcept nogil:
    return region.range.base + region.range.size


cdef View* show_new(Arena* arena, Region* region, Tile* gap, DenseChunk* chunk) noexcept nogil:
    """Add a chunk as free memory at the end of a region, or at the front of a gap."""
    cdef View* view
    chunk.live = 0
    chunk.number = arena.numbered
    chunk.home = NULL
    chunk.view_count = 0
    chunk.view_limit = <uint32_t> arena.engine.tuning.dense_views
    chunk.dropped = 0
    chunk.last_frees = NULL
    chunk.last_free_count = chunk.last_free_room = 0
    chunk.next = NULL
    chunk.prev = arena.last_chunk
    if arena.last_chunk != NULL:
        arena.last_chunk.next = chunk
    else:
        arena.first_chunk = chunk
    arena.last_chunk = chunk
    arena.chunk_count += 1
    arena.numbered += 1
    view = add_view(arena, region, chunk, gap.block.address if gap != NULL else region_end(region))
    if gap != NULL:
        fill_gap(arena, gap, chunk.size, view)
    else:
        append_free(arena, region, chunk.size, view, NULL)
    count_memory(arena, chunk.size, True)
    arena.pool.malloc_count += 1
    return view


cdef void note_created(Arena* arena, const View* view, stream_t stream, uint32_t context) noexcept nogil:
    tally_up(&arena.engine.stats.segment, LARGE, 1)
    arena.engine.stats.device_allocs += 1
    trace_report(&arena.engine.trace, ACTION_SEGMENT_MAP, view.address, view.chunk.size, stream,
                 arena.pool.first, arena.pool.second, context)


cdef void show_again(Arena* arena, Region* region, DenseChunk* chunk) noexcept nogil:
    """Add a view of a chunk: free bytes of the chunk are free there too, the rest are shadows of their users."""
    cdef View* source = chunk.home
    cdef Tile* tile = tile_at(arena, source.region, source.address)
    cdef View* view = add_view(arena, region, chunk, region_end(region))
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
    cdef Tile* tile = tile_at(arena, chunk.home.region, chunk.home.address)
    cdef address_t end = view_end(chunk.home)
    cdef uint64_t count = 0
    while tile != NULL and tile.block.address < end:
        count += 1
        tile = tile_behind(tile)
    return count


cdef bint arena_extend(Arena* arena, Region* region, Tile* gap, Piece* pieces, size_t count, stream_t stream,
                       uint32_t context, Failure* failure) noexcept nogil:
    """Map pieces one after the other; all of them or none. Created pieces get their chunk.

    Maps at the end of a region or, if `gap` is given, only new pieces at the front of the gap. pre: the region, or the
    gap, has the addresses; the region shows no piece's chunk yet
    """
    cdef address_t base = gap.block.address if gap != NULL else region_end(region)
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
    ok = ask_device(arena, region, base, pieces, count, created, failure)
    end_relaxed_capture(arena.engine, relaxed)
    if ok:
        for i in range(count):
            if created[i]:
                note_created(arena, show_new(arena, region, gap, pieces[i].chunk), stream, context)
            else:
                show_again(arena, region, pieces[i].chunk)
    free(created)
    return ok


# --- releasing ----------------------------------------------------------------------------------------------------

cdef bint forget_view(Arena* arena, View* view, Failure* failure) noexcept nogil:
    """Unmap a view; its addresses become a gap. pre: nothing uses memory through it, and all work that did is done"""
    cdef Region* region = view.region
    cdef DenseChunk* chunk = view.chunk
    cdef View** link = &chunk.home
    cdef status_t status
    if not slab_reserve(&arena.tiles, 2):
        return host_memory_failed(failure)
    status = unmap(arena, view.address, chunk.size)
    if status != OK:
        return device_failed(failure, status, b"unmap")
    if arena.engine.trace.on and view == chunk.home and view.next_of_chunk != NULL:
        report_new_home(arena, view, view.next_of_chunk)
    tiles_vanish(arena, view)
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
    slab_give(&arena.views, view)
    arena.counts.views -= 1
    return True


cdef bint release_chunk(Arena* arena, DenseChunk* chunk, uint32_t context, Failure* failure) noexcept nogil:
    """Unmap and release a wholly free chunk. After a refusal the chunk keeps its remaining views."""
    cdef Engine* engine = arena.engine
    cdef address_t home = 0
    cdef status_t status
    if not make_room(<void**> &arena.leftovers, &arena.leftover_room, arena.leftover_count, sizeof(Leftover)):
        return host_memory_failed(failure)
    while chunk.home != NULL:
        home = chunk.home.address
        # The home goes last, so that it does not move before that.
        if not forget_view(arena, chunk.home.next_of_chunk if chunk.view_count > 1 else chunk.home, failure):
            return False
    engine.stats.device_frees += 1
    tally_down(&engine.stats.segment, LARGE, 1)
    arena.pool.malloc_count -= 1
    count_memory(arena, chunk.size, False)
    trace_report(&engine.trace, ACTION_SEGMENT_UNMAP, home, chunk.size, 0, arena.pool.first, arena.pool.second, context)
    status = chunk_release(arena, chunk.handle, chunk.size)
    if status != OK:
        keep_leftover(arena, NULL, 0, chunk, True)
    forget_chunk(arena, chunk)
    return True if status == OK else device_failed(failure, status, b"chunk_release")


cdef bint drop_leftovers(Arena* arena, Failure* failure) noexcept nogil:
    """Ask the device again to take back what it refused to; return whether it took back everything."""
    cdef Leftover* leftover
    cdef status_t status = OK
    cdef size_t i = 0
    while i < arena.leftover_count:
        leftover = &arena.leftovers[i]
        if leftover.region != NULL:
            status = unmap(arena, leftover.address, leftover.size)
            if status != OK:
                return device_failed(failure, status, b"unmap")
            leftover.region.leftovers -= 1
            leftover.region = NULL
        if leftover.created:
            status = chunk_release(arena, leftover.handle, leftover.size)
            if status != OK:
                return device_failed(failure, status, b"chunk_release")
        arena.leftover_count -= 1
        arena.leftovers[i] = arena.leftovers[arena.leftover_count]
    return True


cdef bint is_unused(Arena* arena, const DenseChunk* chunk) noexcept nogil:
    """Whether a chunk is wholly free, and the device was seen finished with it. pre: see_past"""
    return chunk.live == 0 and clock_is_over(
        arena.engine, &tile_at(arena, chunk.home.region, chunk.home.address).clock)


cdef uint64_t last_use(const DenseChunk* chunk) noexcept nogil:
    cdef const View* view = chunk.home
    cdef uint64_t latest = 0
    while view != NULL:
        latest = max(latest, view.last_use)
        view = view.next_of_chunk
    return latest


cdef int used_longest_ago(const void* a, const void* b) noexcept nogil:
    cdef const DenseChunk* left = (<const DenseChunk**> a)[0]
    cdef const DenseChunk* right = (<const DenseChunk**> b)[0]
    if last_use(left) != last_use(right):
        return -1 if last_use(left) < last_use(right) else 1
    return -1 if left.number < right.number else 1


cdef bint arena_trim(Arena* arena, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil:
    """Release unused chunks, least recently used first, until the arena holds at most `keep` bytes."""
    cdef DenseChunk** unused
    cdef DenseChunk* chunk = arena.first_chunk
    cdef size_t count = 0
    cdef size_t i = 0
    cdef bint ok = True
    if not drop_leftovers(arena, failure):
        return False
    unused = <DenseChunk**> calloc(arena.chunk_count + 1, sizeof(DenseChunk*))
    if unused == NULL:
        return host_memory_failed(failure)
    see_past(arena.engine)
    while chunk != NULL:
        if is_unused(arena, chunk):
            unused[count] = chunk
            count += 1
        chunk = chunk.next
    if count > 1:
        qsort(unused, count, sizeof(DenseChunk*), &used_longest_ago)
    while ok and i < count and arena.reserved > keep:
        ok = release_chunk(arena, unused[i], context, failure)
        i += 1
    free(unused)
    return ok and (arena.chunk_count > 0 or arena_retire(arena, failure))


cdef View* view_to_drop(Arena* arena, const DenseChunk* chunk, const Region* region) noexcept nogil:
    """Return the least recently used view of a chunk, among those through which no work runs or may still run."""
    cdef View* view = chunk.home
    cdef View* chosen = NULL
    see_past(arena.engine)
    while view != NULL:
        if (view.live == 0 and not view.region.is_main and view.region != region
                and (chosen == NULL or view.last_use < chosen.last_use)
                and view.freed <= arena.engine.past):
            chosen = view
        view = view.next_of_chunk
    return chosen


cdef void drop_old_views(Arena* arena, DenseChunk* chunk, const Region* region) noexcept nogil:
    """Drop the views of a chunk that exceed its limit, as far as possible, but not the view in `region`.

    If a chunk gets a new view soon after it lost one, its limit is raised instead, but not without bound: every view
    makes each allocation in the chunk slower, and a program whose sizes never repeat always needs new views.

    pre: not inside a capture
    """
    cdef Failure failure
    cdef View* view
    if chunk.view_count <= chunk.view_limit:
        return
    if (chunk.dropped != 0 and arena.requests - chunk.dropped < SOON
            and chunk.view_limit < RAISED_MOST):
        chunk.view_limit *= 2
        chunk.dropped = 0
        return
    while chunk.view_count > chunk.view_limit:
        view = view_to_drop(arena, chunk, region)
        if view == NULL:
            ask_streams(arena, arena.engine.moment)
            view = view_to_drop(arena, chunk, region)
        if view == NULL or not forget_view(arena, view, &failure):
            return
        chunk.dropped = max(arena.requests, <uint64_t> 1)
        arena.counts.views_dropped += 1


cdef bint arena_retire(Arena* arena, Failure* failure) noexcept nogil:
    """Release the addresses, if no memory is mapped there."""
    cdef DeviceTable* table = arena.engine.table
    cdef status_t status
    cdef size_t i
    if arena.chunk_count > 0:
        return True
    if arena.leftover_count > 0 and not drop_leftovers(arena, failure):
        return False
    for i in range(arena.region_count):
        free(arena.regions[i])
    arena.region_count = 0
    arena.main = NULL
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
    """Give another device access to everything that is currently mapped."""
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


# --- from a pool without users ---------------------------------------------------------------------------------------

cdef bint is_all_free(Arena* arena, const Region* region) noexcept nogil:
    """Whether a region is one free tile that the device was seen finished with, at addresses of its own.

    pre: see_past
    """
    cdef Tile* tile = <Tile*> region.range.head
    return (tile != NULL and tile == region.last and tile.state == TILE_FREE and region.leftovers == 0
            and clock_is_over(arena.engine, &tile.clock) and space_of(arena, region) != NULL)


cdef Space* space_of(Arena* arena, const Region* region) noexcept nogil:
    """Return the reserved addresses that belong to exactly this region; NULL if it shares them."""
    cdef size_t i
    for i in range(arena.space_count):
        if arena.spaces[i].base == region.range.base and arena.spaces[i].size == region.room:
            return &arena.spaces[i]
    return NULL


cdef size_t count_views(const Region* region) noexcept nogil:
    cdef const View* view = region.first_view
    cdef size_t count = 0
    while view != NULL:
        count += 1
        view = view.behind
    return count


cdef void hand_over(Arena* arena, Arena* source, Region* old, Region* new, uint32_t context) noexcept nogil:
    """Move the chunks of a region, one by one. pre: records are reserved"""
    cdef View* view = old.first_view
    cdef View* following
    cdef DenseChunk* chunk
    tile_drop_free(source, old.last)
    old.range.size = old.room = 0
    while view != NULL:
        following = view.behind
        trace_report(&arena.engine.trace, ACTION_SEGMENT_UNMAP, view.address, view.chunk.size, 0,
                     source.pool.first, source.pool.second, context)
        chunk = <DenseChunk*> slab_take(&arena.chunks)
        chunk.handle = view.chunk.handle
        chunk.size = view.chunk.size
        count_memory(source, chunk.size, False)
        source.pool.malloc_count -= 1
        forget_chunk(source, view.chunk)
        slab_give(&source.views, view)
        source.counts.views -= 1
        view = show_new(arena, new, NULL, chunk)
        trace_report(&arena.engine.trace, ACTION_SEGMENT_MAP, view.address, chunk.size, 0,
                     arena.pool.first, arena.pool.second, context)
        arena.counts.adopted += 1
        view = following
    old.first_view = old.last_view = NULL


cdef bint arena_adopt(Arena* arena, Arena* source, uint32_t context, Failure* failure) noexcept nogil:
    """Take over the wholly free regions of another arena, without a device call.

    pre: the source belongs to a private pool without users
    """
    cdef Region* region
    cdef Space* space
    cdef size_t i, count
    see_past(arena.engine)
    for i in range(source.region_count):
        if not is_all_free(source, source.regions[i]):
            continue
        count = count_views(source.regions[i])
        region = <Region*> calloc(1, sizeof(Region))
        if region == NULL or not (
                make_room(<void**> &arena.regions, &arena.region_room, arena.region_count, sizeof(Region*))
                and make_room(<void**> &arena.spaces, &arena.space_room, arena.space_count, sizeof(Space))
                and slab_reserve(&arena.chunks, count) and slab_reserve(&arena.views, count)
                and slab_reserve(&arena.tiles, count)):
            free(region)
            return host_memory_failed(failure)
        region.range.base = source.regions[i].range.base
        region.room = source.regions[i].room
        space = space_of(source, source.regions[i])
        # Insert before the last space, from which the arena still takes new regions.
        arena.spaces[arena.space_count] = arena.spaces[arena.space_count - 1] if arena.space_count > 0 else space[0]
        arena.spaces[arena.space_count - 1 if arena.space_count > 0 else 0] = space[0]
        arena.space_count += 1
        source.space_count -= 1
        space[0] = source.spaces[source.space_count]
        add_region(arena, region)
        hand_over(arena, source, source.regions[i], region, context)
    return True
