from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport calloc, free, realloc

from allotment._core.contract.current cimport current_stream
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, stream_t
from allotment._core.edge.checkpoint cimport AddressList
from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_PENDING_FREE, STATE_UNMAPPED, Arrangement, BlockCopy, SegmentCopy, arrangement_clear,
    walk_ranges)
from allotment._core.mechanism.address_map cimport address_reserve, address_take
from allotment._core.mechanism.block cimport is_idle, note_free_requested
from allotment._core.mechanism.capturing cimport capture_of
from allotment._core.mechanism.failure cimport host_memory_failed, pool_failed
from allotment._core.mechanism.frees cimport free_asking_device, free_at_once, is_freed_at_once
from allotment._core.mechanism.holds cimport hold_forget, hold_of, is_needed_elsewhere
from allotment._core.mechanism.pool cimport pool_absent, pool_find, free_list_for
from allotment._core.mechanism.ranges cimport first_range_of
from allotment._core.mechanism.streams cimport (
    defer_unprepared, settle_deferred, stream_for, uses_drop, wait_events, wait_unless_captured)
from allotment._core.model.model cimport (
    FAILED_CHECKPOINT_CAPTURE, FAILED_CHECKPOINT_EVENTS, FAILED_CHECKPOINT_MISMATCH, FAILED_POOL_FREEABLE,
    LEAVING, Block, Engine, Failure, Pool, Range, FreeList, StreamRecord, StreamUse)
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.tools.arrays cimport make_room
from allotment._core.tools.pointer_map cimport (
    PointerMap, map_clear, map_get, map_init, map_pop, map_put, map_reserve)
from allotment._core.tools.slab cimport slab_reserve


cdef Pool* find_in_use(Engine* engine, uint64_t first, uint64_t second, Failure* failure) noexcept nogil:
    cdef Pool* pool = pool_find(engine, first, second)
    if pool == NULL:
        pool_absent(engine, first, second, failure)
        return NULL
    if pool.freeable:
        pool_failed(failure, FAILED_POOL_FREEABLE, first, second)
        return NULL
    return pool


cdef bint checkpoint_take(Engine* engine, uint64_t first, uint64_t second, uint32_t context, Arrangement* state,
                          Failure* failure) noexcept nogil:
    cdef size_t i
    if not settle_deferred(engine, NULL, context, failure) or find_in_use(engine, first, second, failure) == NULL:
        return False
    if not walk_ranges(engine, first, second, state):
        arrangement_clear(state)
        return host_memory_failed(failure)
    for i in range(state.block_count):
        if state.blocks[i].state == STATE_PENDING_FREE:
            arrangement_clear(state)
            failure.reason = FAILED_CHECKPOINT_EVENTS
            return False
    return True


cdef bint list_address(AddressList* list, address_t address) noexcept nogil:
    if not make_room(<void**> &list.addresses, &list.room, list.count, sizeof(address_t)):
        return False
    list.addresses[list.count] = address
    list.count += 1
    return True


cdef bint ranges_by_base(Engine* engine, Pool* pool, PointerMap* by_base) noexcept nogil:
    cdef Range* range_ = first_range_of(engine, pool)
    if not map_init(by_base):
        return False
    while range_ != NULL:
        if range_.free_list.half.pool == pool and range_.head != NULL:
            if not map_reserve(by_base):
                return False
            map_put(by_base, range_.base, range_)
        range_ = range_.next
    return True


cdef bint tiles(const Range* range_, const BlockCopy* then, const BlockCopy* end) noexcept nogil:
    """Whether the recorded blocks could be those of a range. States pass through user code, so everything is checked.

    An expandable range may have grown at its end since then.
    """
    cdef address_t at = range_.base
    cdef bytes_t left = range_.size
    cdef bint was_free = False
    cdef bint was_mapped = False
    cdef bint is_free, is_mapped
    while then < end:
        is_free = then.state != STATE_ALLOCATED
        is_mapped = then.state != STATE_UNMAPPED
        if then.address != at or then.size == 0 or then.size % MIN_BLOCK != 0 or then.size > left:
            return False
        if is_free and was_free and is_mapped == was_mapped:
            return False
        at += then.size
        left -= then.size
        was_free = is_free
        was_mapped = is_mapped
        then += 1
    return left == 0 or range_.free_list.half.arena != NULL


cdef inline bint is_tail(const BlockCopy* then, const BlockCopy* end) noexcept nogil:
    """Whether a recorded block is the unmapped end of an expandable range."""
    return then + 1 == end and then.state == STATE_UNMAPPED


cdef bint has_grown_at_its_end(const Block* now) noexcept nogil:
    """Whether everything mapped from a block on is contiguous, with unmapped addresses after it."""
    while now != NULL and now.mapped:
        now = now.next
    return now != NULL and now.next == NULL


cdef bint same_memory(const Range* range_, const BlockCopy* then, const BlockCopy* end) noexcept nogil:
    """Whether a range is mapped where it was, apart from block boundaries, and perhaps beyond that. pre: tiles"""
    cdef const BlockCopy* first = then
    cdef Block* now = range_.head
    cdef address_t now_until, then_until
    while now != NULL and then < end:
        now_until = now.address + now.size
        then_until = then.address + then.size
        if now.mapped != (then.state != STATE_UNMAPPED):
            return then > first and is_tail(then, end) and has_grown_at_its_end(now)
        # Advance whichever ends first; both if they end together.
        if now_until <= then_until:
            now = now.next
        if then_until <= now_until:
            then += 1
    return then == end and (now == NULL or range_.free_list.half.arena != NULL)


cdef bint is_leaving_in(const Range* range_) noexcept nogil:
    """Whether some memory of a range is being returned to the device."""
    cdef Block* block = range_.head
    while block != NULL and block.withheld != LEAVING:
        block = block.next
    return block != NULL


cdef bint find_ranges(PointerMap* by_base, const Arrangement* state, Range** ranges, Failure* failure) noexcept nogil:
    """Find the range of each recorded segment, if all exist and can be arranged as recorded."""
    cdef const SegmentCopy* segment
    cdef const BlockCopy* blocks
    cdef size_t i
    for i in range(state.segment_count):
        segment = &state.segments[i]
        blocks = &state.blocks[segment.first_block]
        # Removed from the map, so that no range is found twice.
        ranges[i] = <Range*> map_pop(by_base, segment.address)
        failure.address = segment.address
        if ranges[i] == NULL or not (tiles(ranges[i], blocks, blocks + segment.block_count)
                                     and same_memory(ranges[i], blocks, blocks + segment.block_count)
                                     and not is_leaving_in(ranges[i])):
            failure.reason = FAILED_CHECKPOINT_MISMATCH
            return False
    return True


# --- waiting for the streams that use blocks ---------------------------------------------------------------

cdef Block* find_pending(Engine* engine, Range** ranges, size_t count) noexcept nogil:
    """Return a block of these ranges that was freed and still waits, or that another process has open; NULL if none."""
    cdef Block* block
    cdef size_t i
    for i in range(count):
        block = ranges[i].head
        while block != NULL:
            if not block.allocated and not is_idle(block) or is_needed_elsewhere(hold_of(engine, block)):
                return block
            block = block.next
    return NULL


cdef StreamRecord* find_user(Engine* engine, Range** ranges, size_t count, PointerMap* waited_for,
                             Block** used) noexcept nogil:
    """Return a stream that uses a block of these ranges and that nobody has waited for yet; NULL if none."""
    cdef StreamUse* use
    cdef size_t i
    for i in range(count):
        used[0] = ranges[i].head
        while used[0] != NULL:
            use = used[0].uses
            while use != NULL:
                if use.stream != &engine.elsewhere and map_get(waited_for, use.stream.handle + 1) == NULL:
                    return use.stream
                use = use.next
            used[0] = used[0].next
    return NULL


cdef bint wait_for_user(Engine* engine, StreamRecord* stream, const Block* used, PointerMap* waited_for,
                        Failure* failure) noexcept nogil:
    """Has an unlocked section."""
    cdef stream_t handle = stream.handle
    cdef capture_t capture
    cdef address_t address = used.address
    if not map_reserve(waited_for):
        return host_memory_failed(failure)
    map_put(waited_for, handle + 1, engine)
    if not wait_unless_captured(engine, handle, &capture, failure):
        return False
    if capture != 0:
        failure.reason = FAILED_CHECKPOINT_CAPTURE
        failure.address = address
    return capture == 0


cdef bint wait_for_frees(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil:
    """Complete the pool's frees, unless the caller is inside a capture. Has an unlocked section."""
    cdef capture_t capture
    cdef bint ok
    if not capture_of(engine, current_stream(engine.table.serial, 0), &capture, failure):
        return False
    if capture != 0:
        failure.reason = FAILED_CHECKPOINT_EVENTS
        return False
    pool.asking += 1        # keeps the pool alive during the wait
    ok = wait_events(engine, pool, context, failure)
    pool.asking -= 1
    return ok


cdef void end_uses(Engine* engine, Range** ranges, size_t count) noexcept nogil:
    """pre: the streams were waited for"""
    cdef Block* block
    cdef size_t i
    for i in range(count):
        block = ranges[i].head
        while block != NULL:
            hold_forget(engine, block)
            uses_drop(engine, block)
            block = block.next


cdef bint list_live(Engine* engine, Pool* pool, AddressList* live, Failure* failure) noexcept nogil:
    """List a pool's blocks in use, in the order of their ranges, and reserve the host memory to free them all."""
    if not pool_addresses(engine, pool.first, pool.second, live, failure):
        return False
    return slab_reserve(&engine.deferred_slab, live.count) or host_memory_failed(failure)


cdef void free_all(Engine* engine, const AddressList* live, uint32_t context) noexcept nogil:
    """Free the blocks that `list_live` listed.

    A refusal must not leave only half of them freed: a free for which the device refuses an event is deferred instead.
    """
    cdef Failure unimportant
    cdef Block* block
    cdef size_t i
    for i in range(live.count):
        block = address_take(engine, live.addresses[i])
        if is_freed_at_once(block):
            free_at_once(engine, block, context)
        elif not free_asking_device(engine, block, live.addresses[i], context, &unimportant):
            address_take(engine, block.address)
            note_free_requested(engine, block, context)
            defer_unprepared(engine, block)


cdef void cut_as_recorded(Engine* engine, Range* range_, const BlockCopy* then, const BlockCopy* end,
                          uint32_t context) noexcept nogil:
    """Allocate every recorded block of a range, in order. pre: `reserve_records`"""
    cdef Block* block = range_.head
    cdef Pool* pool = range_.free_list.half.pool
    cdef FreeList* free_list
    while then < end:
        if then.state != STATE_UNMAPPED:
            free_list = NULL
            if then.state == STATE_ALLOCATED and pool.placement.reserve != NULL:
                free_list = free_list_for(engine, &pool.large, stream_for(engine, then.stream))
            block = pool.placement.take_front(engine, block, free_list, then.size, context)
        block = block.next
        then += 1


cdef void free_as_recorded(Engine* engine, Range* range_, const BlockCopy* then, const BlockCopy* end,
                           uint32_t context, AddressList* created) noexcept nogil:
    """Free what was free. pre: `created` has room for everything that was in use"""
    cdef Block* block = range_.head
    cdef Block* following
    # Not the unmapped end: the block before it may have become part of memory mapped since then.
    while then < end and not is_tail(then, end):
        following = block.next          # a freed block may be merged
        if then.state == STATE_ALLOCATED:
            created.addresses[created.count] = block.address
            created.count += 1
        elif then.state != STATE_UNMAPPED:
            address_take(engine, block.address)
            free_at_once(engine, block, context)
        block = following
        then += 1


cdef bint reserve_records(Engine* engine, Pool* pool, const Arrangement* state) noexcept nogil:
    """Reserve all host memory that allocating the recorded blocks takes."""
    cdef StreamRecord* stream
    cdef size_t i
    if pool.placement.reserve == NULL:
        return slab_reserve(&engine.block_slab, state.block_count)
    for i in range(state.block_count):
        stream = stream_for(engine, state.blocks[i].stream)
        if stream == NULL or free_list_for(engine, &pool.large, stream) == NULL:
            return False
    return pool.placement.reserve(engine, pool, state.block_count)


cdef Pool* prepare(Engine* engine, uint64_t first, uint64_t second, const Arrangement* state, Range** ranges,
                   Failure* failure) noexcept nogil:
    """Find the pool and the range of each recorded segment, and reserve host memory; NULL on failure."""
    cdef Pool* pool = find_in_use(engine, first, second, failure)
    cdef PointerMap by_base
    cdef bint ok
    if pool == NULL:
        return NULL
    by_base.slots = NULL
    ok = ((ranges_by_base(engine, pool, &by_base) and reserve_records(engine, pool, state)
           and address_reserve(engine, state.block_count)) or host_memory_failed(failure)
          ) and find_ranges(&by_base, state, ranges, failure)
    map_clear(&by_base)
    return pool if ok else NULL


cdef Pool* prepare_unused(Engine* engine, uint64_t first, uint64_t second, const Arrangement* state, Range** ranges,
                          uint32_t context, Failure* failure) noexcept nogil:
    """Call `prepare` once nothing in the ranges waits for a stream; waits for the streams that use them.

    Has an unlocked section.
    """
    cdef PointerMap waited_for
    cdef StreamRecord* stream
    cdef Block* block = NULL
    cdef bint completed = False
    cdef bint ok = map_init(&waited_for) or host_memory_failed(failure)
    cdef Pool* pool = prepare(engine, first, second, state, ranges, failure) if ok else NULL
    while pool != NULL:
        stream = find_user(engine, ranges, state.segment_count, &waited_for, &block)
        if find_pending(engine, ranges, state.segment_count) != NULL:
            if completed:
                failure.reason = FAILED_CHECKPOINT_EVENTS       # a capture or another thread delays the wait
                pool = NULL
                break
            completed = True
            ok = wait_for_frees(engine, pool, context, failure)
        elif stream != NULL:
            ok = wait_for_user(engine, stream, block, &waited_for, failure)
        else:
            break
        pool = prepare(engine, first, second, state, ranges, failure) if ok else NULL
    map_clear(&waited_for)
    return pool


cdef void forget_late_frees(Engine* engine, const AddressList* freed) noexcept nogil:
    """Drop late frees of blocks that are freed by now: their addresses may already belong to other blocks."""
    cdef size_t kept = 0
    cdef size_t i, j
    for i in range(engine.late_free_count):
        j = 0
        while j < freed.count and freed.addresses[j] != engine.late_frees[i]:
            j += 1
        if j == freed.count:
            engine.late_frees[kept] = engine.late_frees[i]
            kept += 1
    engine.late_free_count = kept


cdef bint checkpoint_restore(Engine* engine, uint64_t first, uint64_t second, const Arrangement* state,
                             uint32_t context, AddressList* freed, AddressList* created,
                             Failure* failure) noexcept nogil:
    """Has an unlocked section."""
    cdef Range** ranges = <Range**> calloc(state.segment_count + 1, sizeof(Range*))
    cdef const SegmentCopy* segment
    cdef const BlockCopy* blocks
    cdef Pool* pool
    cdef size_t i
    cdef bint ok
    created.addresses = <address_t*> realloc(created.addresses, (state.block_count + 1) * sizeof(address_t))
    created.room = state.block_count + 1
    if ranges == NULL or created.addresses == NULL:
        free(ranges)
        return host_memory_failed(failure)
    pool = prepare_unused(engine, first, second, state, ranges, context, failure)
    ok = pool != NULL and list_live(engine, pool, freed, failure)
    if ok:
        end_uses(engine, ranges, state.segment_count)
        free_all(engine, freed, context)
        for i in range(state.segment_count):
            segment = &state.segments[i]
            blocks = &state.blocks[segment.first_block]
            cut_as_recorded(engine, ranges[i], blocks, blocks + segment.block_count, context)
            free_as_recorded(engine, ranges[i], blocks, blocks + segment.block_count, context, created)
        forget_late_frees(engine, freed)
    free(ranges)
    return ok


cdef bint pool_addresses(Engine* engine, uint64_t first, uint64_t second, AddressList* out,
                         Failure* failure) noexcept nogil:
    """List the addresses of a pool's blocks in use, range by range."""
    cdef Pool* pool = pool_find(engine, first, second)
    cdef Range* range_
    cdef Block* block
    if pool == NULL:
        return pool_absent(engine, first, second, failure)
    range_ = first_range_of(engine, pool)
    while range_ != NULL:
        block = range_.head if range_.free_list.half.pool == pool else NULL
        while block != NULL:
            if block.allocated and not list_address(out, block.address):
                return host_memory_failed(failure)
            block = block.next
        range_ = range_.next
    return True
