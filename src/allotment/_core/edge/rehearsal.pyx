from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport malloc
from libc.string cimport memset

from allotment._core.contract.table cimport (
    CAN_EVENTS, CAN_VIRTUAL, NOT_READY, OK, OUT_OF_MEMORY, TABLE_VERSION, DeviceTable, status_t)
from allotment._core.contract.types cimport address_t, bytes_t, chunk_t, count_t, event_t, stream_t
from allotment._core.edge.rehearsal cimport (
    NOT_REFUSED, REFUSED_ALLOCATOR, REFUSED_DEFERRED, REFUSED_FILTER, REFUSED_PLACEMENT, Paper, Rehearsal, Wish)
from allotment._core.engine cimport engine_create, engine_discard, engine_enter, engine_leave, serve
from allotment._core.mechanism.block cimport block_record, is_within_reach
from allotment._core.mechanism.failure cimport host_memory_failed
from allotment._core.mechanism.limits cimport limits_set, soft_limit_set
from allotment._core.mechanism.pool cimport (
    is_impure, pool_create_or_incref, pool_find, pool_set_use_on_oom, route_begin, free_list_for)
from allotment._core.mechanism.ranges cimport range_make_plain, range_place, range_reserve
from allotment._core.mechanism.streams cimport stream_for
from allotment._core.model.model cimport (
    FAILED_OUT_OF_MEMORY, FAILED_REJECTED, Block, Chunk, Engine, Failure, Filter, PendingEvent, Pool, Half,
    Range, RawAllocator, Request, Route, FreeList, StreamRecord)
from allotment._core.model.sizes cimport Tuning
from allotment._core.placement.pytorch.free_index cimport tree_insert
from allotment._core.placement.pytorch.free_lists cimport put_on_free_list
from allotment._core.records.stats cimport SMALL, PoolTally, tally_now
from allotment._core.tools.pointer_map cimport PointerMap, map_clear, map_get, map_init, map_put, map_reserve
from allotment._core.tools.slab cimport slab_reserve, slab_take

cdef enum:                      # events of the paper device
    EVENT_DONE = 1
    EVENT_AHEAD = 2


# --- the paper device --------------------------------------------------------------------------------------------

cdef address_t take_addresses(Paper* paper, bytes_t size) noexcept nogil:
    cdef address_t address = paper.placed
    if address != 0:
        paper.placed = 0
        return address
    address = paper.next
    paper.next += (size + paper.page - 1) // paper.page * paper.page
    return address


cdef inline status_t take_memory(Paper* paper, bytes_t size) noexcept nogil:
    if size > paper.left:
        return OUT_OF_MEMORY
    paper.left -= size
    return OK


cdef status_t segment_allocate(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    cdef status_t status = take_memory(<Paper*> self, size)
    if status == OK:
        address[0] = take_addresses(<Paper*> self, size)
    return status


cdef status_t segment_free(void* self, address_t address, bytes_t size) noexcept nogil:
    (<Paper*> self).left += size
    return OK


cdef status_t range_reserve_paper(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil:
    address[0] = take_addresses(<Paper*> self, size)
    return OK


cdef status_t range_release(void* self, address_t address, bytes_t size) noexcept nogil:
    return OK


cdef status_t chunk_create(void* self, bytes_t size, chunk_t* chunk) noexcept nogil:
    chunk[0] = 0
    return take_memory(<Paper*> self, size)


cdef status_t chunk_release(void* self, chunk_t chunk, bytes_t size) noexcept nogil:
    (<Paper*> self).left += size
    return OK


cdef status_t map_chunk(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil:
    return OK


cdef status_t unmap_chunk(void* self, address_t address, bytes_t size) noexcept nogil:
    return OK


cdef status_t granularity(void* self, bytes_t* size) noexcept nogil:
    size[0] = (<Paper*> self).page
    return OK


cdef status_t memory_info(void* self, bytes_t* left, bytes_t* total) noexcept nogil:
    left[0] = (<Paper*> self).left
    total[0] = (<Paper*> self).total
    return OK


cdef status_t event_query(void* self, event_t event) noexcept nogil:
    return OK if event == EVENT_DONE else NOT_READY


cdef status_t event_destroy(void* self, event_t event) noexcept nogil:
    return OK


cdef status_t event_synchronize(void* self, event_t event) noexcept nogil:
    return OK


cdef status_t stream_synchronize(void* self, stream_t stream) noexcept nogil:
    return OK


cdef address_t refuse(void* self, bytes_t size, stream_t stream) noexcept nogil:
    return 0


cdef void take_nothing(void* self, address_t address, bytes_t size, stream_t stream) noexcept nogil:
    pass


cdef void fill_paper(Paper* paper, Engine* engine) noexcept nogil:
    """Give it as much memory as the live device has left; a device that cannot report that counts as having enough."""
    cdef DeviceTable* live = engine.table
    cdef DeviceTable* table = &paper.table
    cdef size_t i
    memset(paper, 0, sizeof(Paper))
    paper.page = 512
    if live.granularity != NULL and live.granularity(live.self, &paper.page) != OK:
        paper.page = 512
    if live.memory_info == NULL or live.memory_info(live.self, &paper.left, &paper.total) != OK:
        paper.left = <bytes_t> 1 << 62
        paper.total = 0
    table.size = sizeof(DeviceTable)
    table.version = TABLE_VERSION
    table.capabilities = live.capabilities & (CAN_VIRTUAL | CAN_EVENTS)
    table.device = live.device
    table.self = paper
    table.segment_allocate = segment_allocate
    table.segment_free = segment_free
    table.range_reserve = range_reserve_paper
    table.range_release = range_release
    table.chunk_create = chunk_create
    table.chunk_release = chunk_release
    table.map = map_chunk
    table.unmap = unmap_chunk
    table.granularity = granularity
    table.memory_info = memory_info
    table.event_destroy = event_destroy
    table.event_query = event_query
    table.event_synchronize = event_synchronize
    table.stream_synchronize = stream_synchronize
    paper.next = paper.page
    for i in range(engine.placed_count):
        paper.next = max(paper.next, engine.by_address[i].base + engine.by_address[i].size)
    paper.next = (paper.next + paper.page - 1) // paper.page * paper.page


# --- the twin ----------------------------------------------------------------------------------------------------

cdef Refusal refusal_of(const Engine* engine) noexcept nogil:
    cdef const Pool* pool = engine.first_pool
    cdef const Route* route = engine.routes
    if engine.first_deferred != NULL:
        return REFUSED_DEFERRED
    if engine.defaults.large.arena != NULL:
        return REFUSED_PLACEMENT
    while pool != NULL:
        if pool.large.arena != NULL:
            return REFUSED_PLACEMENT
        pool = pool.next
    while route != NULL:
        if is_impure(&route.filter):
            return REFUSED_FILTER
        if route.pool.allocator.allocate != NULL:
            return REFUSED_ALLOCATOR
        route = route.older
    return NOT_REFUSED


cdef Pool* twin_pool(Engine* twin, const Engine* engine, const Pool* pool) noexcept nogil:
    return &twin.defaults if pool == &engine.defaults else pool_find(twin, pool.first, pool.second)


cdef Half* twin_half(Engine* twin, const Engine* engine, const Half* half) noexcept nogil:
    cdef Pool* pool = twin_pool(twin, engine, half.pool)
    return &pool.small if half.size_class == SMALL else &pool.large


cdef bint copy_pools(Engine* twin, const Engine* engine, Failure* failure) noexcept nogil:
    cdef const Pool* pool = engine.first_pool
    cdef Pool* made
    cdef RawAllocator of_paper
    of_paper.allocate = refuse
    of_paper.free = take_nothing
    of_paper.drop = NULL
    of_paper.self = NULL
    while pool != NULL:
        if not (pool_create_or_incref(twin, pool.first, pool.second,
                                      NULL if pool.allocator.allocate == NULL else &of_paper, pool.placement, failure)
                and pool_set_use_on_oom(twin, pool.first, pool.second, pool.use_on_oom, failure)):
            return False
        made = pool_find(twin, pool.first, pool.second)
        made.no_split = pool.no_split
        pool = pool.next
    return True


cdef void copy_pool_counts(Engine* twin, const Engine* engine) noexcept nogil:
    """Copy the counts. pre: the routes exist, which are users too"""
    cdef const Pool* pool = &engine.defaults
    cdef Pool* made
    while pool != NULL:
        made = twin_pool(twin, engine, pool)
        made.use_count = pool.use_count
        made.freeable = pool.freeable
        twin.freeable_count += pool.freeable
        made.malloc_count = pool.malloc_count
        made.reserved_bytes = pool.reserved_bytes
        made.tag = pool.tag
        made.sleeps_with = pool.sleeps_with
        made.sleepers = pool.sleepers
        made.replayed = pool.replayed
        made.lent = pool.lent
        twin.lent_count += pool.lent
        made.sleep = pool.sleep
        made.small.away = pool.small.away
        made.large.away = pool.large.away
        limits_set(twin, made, &pool.limits)
        made.small.search_count = pool.small.search_count
        made.large.search_count = pool.large.search_count
        pool = engine.first_pool if pool == &engine.defaults else pool.next


cdef bint copy_routes(Engine* twin, const Route* route, Failure* failure) noexcept nogil:
    """Copy the routes, the oldest first."""
    cdef Filter filter
    if route == NULL:
        return True
    filter = route.filter
    filter.drop = NULL
    return (copy_routes(twin, route.older, failure)
            and route_begin(twin, route.pool.first, route.pool.second, filter, failure))


cdef bint copy_pages(Engine* twin, const Range* range_, Range* made) noexcept nogil:
    cdef Chunk* chunk
    cdef size_t page
    if not slab_reserve(&twin.chunk_slab, range_.page_end):
        return False
    for page in range(range_.page_end):
        if range_.views[page] != NULL:
            chunk = <Chunk*> slab_take(&twin.chunk_slab)
            chunk.handle = 0
            chunk.size = range_.views[page].size
            chunk.views = range_.views[page].views
            made.views[page] = chunk
    made.page_end = range_.page_end
    made.mapped = range_.mapped
    made.free_list.half.expandable_count += 1
    return True


cdef bint copy_blocks(Engine* twin, const Range* range_, Range* made, PointerMap* twins) noexcept nogil:
    """Store in `twins` the blocks that wait or are in a list of the live engine; put other free ones on free lists."""
    cdef const Block* block = range_.head
    cdef Block* before = NULL
    cdef Block* copied
    while block != NULL:
        if not (slab_reserve(&twin.block_slab, 1) and map_reserve(twins)):
            return False
        copied = block_record(twin, made.free_list, made, block.address, block.size)
        copied.order = block.order
        copied.requested = block.requested
        copied.allocated = block.allocated or block.uses != NULL    # in use, or not available to the rehearsal
        copied.mapped = block.mapped
        copied.event_count = block.event_count
        copied.withheld = block.withheld    # LEAVING or 0: deferred blocks are refused
        copied.prev = before
        if before != NULL:
            before.next = copied
        else:
            made.head = copied
        before = copied
        if not block.mapped:
            if is_within_reach(block):
                tree_insert(&made.free_list.unmapped, copied)
        elif block.releasable or block.event_count > 0 or block == block.free_list.half.last_freed:
            map_put(twins, <uint64_t> block, copied)
        block = block.next
    # Not earlier: the neighbours show whether a block is all of its segment.
    block = range_.head
    copied = made.head
    while block != NULL:
        if block.mapped and is_within_reach(block) and map_get(twins, <uint64_t> block) == NULL:
            put_on_free_list(copied)
        block = block.next
        copied = copied.next
    return True


cdef bint copy_ranges(Engine* twin, const Engine* engine, PointerMap* twins, Failure* failure) noexcept nogil:
    cdef const Range* range_ = engine.first_range
    cdef StreamRecord* stream
    cdef FreeList* free_list
    cdef Range* made
    while range_ != NULL:
        if range_.base == 0:        # a thread is just allocating its memory
            range_ = range_.next
            continue
        stream = stream_for(twin, range_.free_list.stream.handle)
        free_list = NULL
        if stream != NULL:
            free_list = free_list_for(twin, twin_half(twin, engine, range_.free_list.half), stream)
        if free_list == NULL:
            return host_memory_failed(failure)
        if range_.page == 0:
            made = range_make_plain(twin, free_list, range_.size)
            if made == NULL:
                return host_memory_failed(failure)
            if not range_place(twin, made, range_.base, b"copy", failure):
                return False
        else:
            (<Paper*> twin.table.self).placed = range_.base
            made = range_reserve(twin, free_list, range_.page, range_.size, failure)
            if made == NULL:
                return False
            if not copy_pages(twin, range_, made):
                return host_memory_failed(failure)
        made.order = range_.order
        made.freed_at = range_.freed_at
        if not copy_blocks(twin, range_, made, twins):
            return host_memory_failed(failure)
        range_ = range_.next
    return True


cdef void add_by_age(Engine* twin, const Engine* engine, const Half* half, PointerMap* twins) noexcept nogil:
    """Put the blocks that are all of a plain segment on free lists, oldest first, and then the last freed block."""
    cdef const Block* block = half.oldest
    while block != NULL:
        put_on_free_list(<Block*> map_get(twins, <uint64_t> block))
        block = block.newer
    if half.last_freed != NULL:
        twin_half(twin, engine, half).last_freed = <Block*> map_get(twins, <uint64_t> half.last_freed)


cdef bint copy_waiting(Engine* twin, Engine* engine, PointerMap* twins, Failure* failure) noexcept nogil:
    """Copy the events that blocks wait for, done or not, as the live device now reports them."""
    cdef StreamRecord* stream = engine.first_waiting
    cdef StreamRecord* made
    cdef PendingEvent* pending
    cdef PendingEvent* copied
    cdef bint done
    while stream != NULL:
        made = stream_for(twin, stream.handle)
        if made == NULL:
            return host_memory_failed(failure)
        made.users += 1         # keeps the record for the whole rehearsal
        made.recorded = stream.recorded
        made.finished = stream.finished
        if twin.last_waiting != NULL:
            twin.last_waiting.next_waiting = made
        else:
            twin.first_waiting = made
        twin.last_waiting = made
        done = True
        pending = stream.first
        while pending != NULL:
            if not slab_reserve(&twin.pending_slab, 1):
                return host_memory_failed(failure)
            done = done and (pending.tick <= stream.finished
                             or engine.table.event_query(engine.table.self, pending.event) == OK)
            copied = <PendingEvent*> slab_take(&twin.pending_slab)
            copied[0] = pending[0]
            copied.event = EVENT_DONE if done else EVENT_AHEAD
            copied.block = <Block*> map_get(twins, <uint64_t> pending.block)
            copied.next = NULL
            if made.first != NULL:
                made.last.next = copied
            else:
                made.first = copied
            made.last = copied
            pending = pending.next
        stream = stream.next_waiting
    return True


cdef bint reserve_events(Engine* twin, const Engine* engine) noexcept nogil:
    """Make room for the events that return when they are done."""
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    cdef size_t count = 0
    while stream != NULL:
        pending = stream.first
        while pending != NULL:
            count += 1
            pending = pending.next
        stream = stream.next_waiting
    twin.spare_events = <event_t*> malloc((count + 1) * sizeof(event_t))
    twin.spare_event_room = count
    return twin.spare_events != NULL


cdef bint copy_engine(Engine* twin, Engine* engine, Failure* failure) noexcept nogil:
    cdef PoolTally* pools
    cdef StreamRecord* stream = engine.known_streams
    cdef StreamRecord* made
    cdef const Pool* pool = &engine.defaults
    cdef PointerMap twins
    cdef bint ok
    if not map_init(&twins):
        return host_memory_failed(failure)
    while stream != NULL:
        made = stream_for(twin, stream.handle)
        if made == NULL:
            map_clear(&twins)
            return host_memory_failed(failure)
        made.range_bytes = stream.range_bytes
        stream = stream.next_known
    ok = (copy_pools(twin, engine, failure) and copy_routes(twin, engine.routes, failure)
          and copy_ranges(twin, engine, &twins, failure)
          and (reserve_events(twin, engine) or host_memory_failed(failure))
          and copy_waiting(twin, engine, &twins, failure))
    if ok:
        copy_pool_counts(twin, engine)
        while pool != NULL:
            add_by_age(twin, engine, &pool.small, &twins)
            add_by_age(twin, engine, &pool.large, &twins)
            pool = engine.first_pool if pool == &engine.defaults else pool.next
        pools = twin.stats.pools
        twin.stats = engine.stats
        twin.stats.pools = pools
        twin.limit = engine.limit
        twin.limited = engine.limited
        twin.tag_count = engine.tag_count
        soft_limit_set(twin, engine.soft_limit)
        twin.uncached = engine.uncached
        twin.segments_numbered = engine.segments_numbered
        twin.blocks_numbered = engine.blocks_numbered
    map_clear(&twins)
    return ok


# --- the rehearsal -----------------------------------------------------------------------------------------------

cdef bint try_request(Engine* twin, const Wish* wish, Failure* failure) noexcept nogil:
    cdef Request request
    if twin.uncached:
        failure.reason = FAILED_OUT_OF_MEMORY
        return take_memory(<Paper*> twin.table.self, wish.size) == OK
    memset(&request, 0, sizeof(Request))
    request.size = wish.size
    request.stream = wish.stream
    if serve(twin, &request) != NULL:
        return True
    failure[0] = request.failure
    return False


cdef bint rehearse(Engine* engine, const Wish* wishes, size_t count, Rehearsal* out) noexcept nogil:
    """Return False with the reason in out.failure if it could not be rehearsed, or with a refusal. pre: inside `engine`

    Leaves the live engine once the copy is complete: the rehearsal itself blocks nobody.
    """
    cdef Paper paper
    cdef Tuning tuning = engine.tuning
    cdef Engine* twin
    cdef count_t before
    cdef bint ok = True
    memset(out, 0, sizeof(Rehearsal))
    out.refusal = refusal_of(engine)
    if out.refusal != NOT_REFUSED:
        engine_leave(engine)
        return False
    fill_paper(&paper, engine)
    tuning.release_lock = False
    twin = engine_create(&paper.table, &tuning, &engine.rules, engine.placement, &out.failure)
    if twin != NULL:
        twin.total_memory = engine.total_memory
        twin.terse = True
        ok = copy_engine(twin, engine, &out.failure)
    engine_leave(engine)
    if twin == NULL:
        return False
    if ok:
        before = tally_now(&twin.stats.reserved_bytes)
        engine_enter(twin)
        while out.served < count and try_request(twin, &wishes[out.served], &out.failure):
            out.served += 1
        engine_leave(twin)
        out.fits = out.served == count
        out.new_reserved = tally_now(&twin.stats.reserved_bytes) - before
        ok = out.fits or out.failure.reason == FAILED_OUT_OF_MEMORY or out.failure.reason == FAILED_REJECTED
    engine_discard(twin)
    return ok
