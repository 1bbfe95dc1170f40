from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport OK, OUT_OF_MEMORY, status_t
from allotment._core.contract.types cimport bytes_t, count_t
from allotment._core.mechanism.capturing cimport is_captured
from allotment._core.mechanism.failure cimport device_failed, host_memory_failed
from allotment._core.mechanism.holds cimport is_needed_elsewhere
from allotment._core.mechanism.limits cimport room_within_limits
from allotment._core.mechanism.pausing cimport Extent, ExtentList
from allotment._core.mechanism.pool cimport count_reserved, free_list_for, pause_failed
from allotment._core.mechanism.ranges cimport missing_of, range_empty, range_fill
from allotment._core.mechanism.reclaim cimport release_everything
from allotment._core.mechanism.shortage cimport note_out_of_memory
from allotment._core.mechanism.unlocked_section cimport unlocked_t, end_unlocked, begin_unlocked
from allotment._core.mechanism.streams cimport stream_for
from allotment._core.model.model cimport (
    ASLEEP, AWAKE, FAILED_DEVICE, FAILED_PAUSE_CAPTURE, FAILED_PAUSE_PLACEMENT, FAILED_PAUSE_PLAIN, FAILED_PAUSE_SHARED,
    FAILED_PAUSED, FALLING_ASLEEP, NO_LIMITER, WAKING, Block, Engine, Failure, Hold, Pool, Half, Range, Request,
    StreamRecord)
from allotment._core.tools.arrays cimport make_room


cdef Range* range_of(Range* range_, const Pool* pool) noexcept nogil:
    """Return the first range of a pool, searching from `range_`."""
    while range_ != NULL and range_.free_list.half.pool != pool:
        range_ = range_.next
    return range_


# --- what can be paused ------------------------------------------------------------------------------------

cdef Block* shared_block(Engine* engine, const Pool* pool) noexcept nogil:
    cdef size_t i
    cdef Hold* hold
    for i in range(engine.holds.mask + 1 if engine.holds.count > 0 else 0):
        if engine.holds.slots[i].key != 0:
            hold = <Hold*> engine.holds.slots[i].value
            if hold.block.free_list.half.pool == pool and is_needed_elsewhere(hold):
                return hold.block
    return NULL


cdef bint can_be_paused(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    cdef Range* range_ = range_of(engine.first_range, pool)
    cdef Block* shared = shared_block(engine, pool)
    pause_failed(failure, FAILED_PAUSED, pool)
    if pool.sleep != AWAKE and pool.sleep != ASLEEP:
        return False
    if pool.large.arena != NULL:
        failure.reason = FAILED_PAUSE_PLACEMENT
        failure.fault = pool.placement.name
        return False
    if shared != NULL:
        failure.reason = FAILED_PAUSE_SHARED
        failure.address = shared.address
        return False
    if is_captured(engine):
        failure.reason = FAILED_PAUSE_CAPTURE
        return False
    while range_ != NULL:
        if range_.page == 0:
            failure.reason = FAILED_PAUSE_PLAIN
            failure.address = range_.base
            return False
        range_ = range_of(range_.next, pool)
    return True


# --- pausing -----------------------------------------------------------------------------------------------

cdef bint pause_begin(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    """Stop serving requests, and wait for all submitted work. Has an unlocked section."""
    cdef unlocked_t unlocked
    cdef status_t status = OK
    if not can_be_paused(engine, pool, failure):
        return False
    if pool.sleep == ASLEEP:
        return True
    pool.sleep = FALLING_ASLEEP
    pool.asking += 1
    if engine.table.device_synchronize != NULL:
        unlocked = begin_unlocked(engine)
        status = engine.table.device_synchronize(engine.table.self)
        end_unlocked(engine, unlocked)
    if status != OK:
        pause_undo(engine, pool)
        return device_failed(failure, status, b"device_synchronize")
    return True


cdef bint add_extent(ExtentList* list, const Block* block) noexcept nogil:
    cdef Extent* last = &list.extents[list.count - 1] if list.count > 0 else NULL
    list.total += block.size
    if last != NULL and last.address + last.size == block.address:
        last.size += block.size
        return True
    if not make_room(<void**> &list.extents, &list.room, list.count, sizeof(Extent)):
        return False
    list.extents[list.count] = Extent(block.address, block.size)
    list.count += 1
    return True


cdef bint pause_extents(Engine* engine, Pool* pool, ExtentList* list, Failure* failure) noexcept nogil:
    cdef Range* range_ = range_of(engine.first_range, pool)
    cdef Block* block
    while range_ != NULL:
        block = range_.head
        while block != NULL:
            if (block.allocated or pool.replayed and block.mapped) and not add_extent(list, block):
                return host_memory_failed(failure)
            block = block.next
        range_ = range_of(range_.next, pool)
    return True


cdef void pause_undo(Engine* engine, Pool* pool) noexcept nogil:
    pool.sleep = AWAKE
    pool.asking -= 1


cdef void update_away(Engine* engine, Half* half) noexcept nogil:
    """Update the counters to the bytes of the pages without memory."""
    cdef Range* range_ = range_of(engine.first_range, half.pool)
    cdef bytes_t missing = 0
    while range_ != NULL:
        if range_.free_list.half == half:
            missing += missing_of(range_)
        range_ = range_of(range_.next, half.pool)
    count_reserved(engine, half, <count_t> half.away - <count_t> missing)
    half.away = missing


cdef bint empty_ranges(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    """Release all memory that can be released. Other threads may enter between two ranges."""
    cdef Range* range_ = range_of(engine.first_range, pool)
    cdef bint ok = True
    while range_ != NULL:
        ok = range_empty(engine, range_, failure) and ok
        range_ = range_of(range_.next, pool)
    update_away(engine, &pool.small)
    update_away(engine, &pool.large)
    return ok


cdef bint pause_end(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    cdef bint ok
    pool.sleep = ASLEEP
    pool.asking += 1        # a sleeping pool could be deleted with its last block
    ok = empty_ranges(engine, pool, failure)
    pool.asking -= 1
    return ok


# --- resuming ----------------------------------------------------------------------------------------------

cdef bint fill_ranges(Engine* engine, Pool* pool, Failure* failure) noexcept nogil:
    cdef Range* range_ = range_of(engine.first_range, pool)
    cdef Failure undoing
    if pool.small.away + pool.large.away > room_within_limits(engine, pool, failure):
        return device_failed(failure, OUT_OF_MEMORY, b"limit")
    failure.limiter = NO_LIMITER
    while range_ != NULL:
        if not range_fill(engine, range_, failure):
            empty_ranges(engine, pool, &undoing)
            return False
        range_ = range_of(range_.next, pool)
    update_away(engine, &pool.small)
    update_away(engine, &pool.large)
    return True


cdef inline bint is_short(const Failure* failure) noexcept nogil:
    return failure.reason == FAILED_DEVICE and failure.status == OUT_OF_MEMORY


cdef bint resume_begin(Engine* engine, Pool* pool, uint32_t context, Failure* failure) noexcept nogil:
    """Back all addresses, or none; releases memory cached elsewhere if needed. Has an unlocked section."""
    cdef StreamRecord* stream
    cdef Request request
    cdef bint ok
    if pool.sleep != ASLEEP:
        return pause_failed(failure, FAILED_PAUSED, pool)
    if is_captured(engine):
        return pause_failed(failure, FAILED_PAUSE_CAPTURE, pool)
    pool.sleep = WAKING
    ok = fill_ranges(engine, pool, failure)
    if not ok and is_short(failure):
        ok = (release_everything(engine, False, context, failure) and fill_ranges(engine, pool, failure))
    if ok:
        return True
    pool.sleep = ASLEEP
    if is_short(failure):
        request.failure = failure[0]
        request.size = request.rounded = request.segment = pool.small.away + pool.large.away
        request.stream = 0
        request.context = context
        stream = stream_for(engine, 0)
        request.free_list = free_list_for(engine, &pool.large, stream) if stream != NULL else NULL
        if request.free_list == NULL:
            return host_memory_failed(failure)
        note_out_of_memory(engine, &request)
        failure[0] = request.failure
    return False


cdef void resume_end(Engine* engine, Pool* pool) noexcept nogil:
    pool.sleep = AWAKE
    pool.asking -= 1
