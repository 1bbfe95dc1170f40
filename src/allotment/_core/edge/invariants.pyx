from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.string cimport memset

from allotment._core.contract.types cimport address_t, bytes_t, count_t
from allotment._core.mechanism.address_map cimport address_count, block_at
from allotment._core.mechanism.block cimport is_idle
from allotment._core.mechanism.invariant_failure cimport describe_block, violated
from allotment._core.mechanism.holds cimport is_needed_elsewhere
from allotment._core.mechanism.pool cimport has_limits, pool_find
from allotment._core.mechanism.ranges cimport has_recorded_addresses, missing_of
from allotment._core.model.model cimport (
    AWAKE, DEFERRED, FOR_ROUTES, FOR_TENANTS, Block, Deferred, Engine, Hold, PendingEvent, Pool, Range, StreamRecord,
    StreamUse, no_limit)
from allotment._core.model.sizes cimport MIN_BLOCK
from allotment._core.edge.walk cimport tenants_sum
from allotment._core.records.tenants cimport TENANTS_MOST
from allotment._core.records.stats cimport ALL, LARGE, SMALL, Tally, Totals, tally_of
from allotment._core.tools.lock cimport allotment_lock_out


# --- ranges and their blocks -------------------------------------------------------------------------------

cdef int check_tiling(Range* range_) except -1:
    cdef Block* block = range_.head
    cdef Block* before = NULL
    cdef bytes_t at = range_.base
    while block != NULL:
        if (block.address != at or block.prev != before or block.range != range_
                or block.free_list.half != range_.free_list.half):
            violated("blocks tile their range", f"{describe_block(block)} stands where {at:#x} should begin")
        if block.size == 0 or block.size % MIN_BLOCK != 0:
            violated("block sizes are multiples of 512", describe_block(block))
        at += block.size
        before = block
        block = block.next
    if at != range_.base + range_.size:
        violated("blocks tile their range", f"the range at {range_.base:#x} ends at {range_.base + range_.size:#x}, "
               f"its blocks at {at:#x}")
    return 0


cdef int check_views(Range* range_) except -1:
    """Check that every page under a mapped block has memory, and that `mapped` is their number."""
    cdef Block* block = range_.head
    cdef bytes_t mapped = 0
    cdef uint64_t page
    while block != NULL:
        if block.mapped:
            mapped += block.size
            for page in range((block.address - range_.base) // range_.page,
                              (block.address + block.size - 1 - range_.base) // range_.page + 1):
                if range_.free_list.half.pool.sleep == AWAKE and (
                        range_.views[page] == NULL or range_.views[page].views == 0):
                    violated("mapped blocks have memory", f"page {page} under {describe_block(block)} has none")
        block = block.next
    if mapped != range_.mapped:
        violated("a range knows how much of it is mapped", f"{range_.mapped} noted, {mapped} found")
    return 0


cdef struct Counting:
    Engine* engine
    Totals* totals
    bytes_t reserved
    const Block* astray         # allocated, but not in the address map


cdef bint count_part(void* self, const Block* block, address_t address, bytes_t size, bint begins) noexcept nogil:
    """Add memory to the totals: a part of a free block, or a whole allocated or pending block."""
    cdef Counting* counting = <Counting*> self
    cdef Totals* totals = counting.totals
    cdef int size_class = block.free_list.half.size_class
    counting.reserved += size
    totals.reserved_bytes[size_class] += size
    if block.allocated:
        if block_at(counting.engine, block.address) != block:
            counting.astray = block
        totals.allocation[size_class] += 1
        totals.allocated_bytes[size_class] += size
    if not is_idle(block):
        totals.active[size_class] += 1
        totals.active_bytes[size_class] += size
        totals.requested_bytes[size_class] += block.requested
    return True


cdef int count_range(Counting* counting, const Range* range_) except -1:
    cdef Block* block = range_.head
    while block != NULL:
        if block.mapped:
            count_part(counting, block, block.address, block.size, False)
        elif block.allocated:
            violated("unmapped memory is free", describe_block(block))
        block = block.next
    return 0


cdef int check_counted(const Counting* counting) except -1:
    if counting.astray != NULL:
        violated("allocated blocks are in the address map", describe_block(counting.astray))
    return 0


cdef int check_order(Engine* engine) except -1:
    """Check that all ranges are in address order without overlap, unless their addresses come from a recording."""
    cdef Range* range_ = engine.first_range
    cdef Range* before
    cdef size_t count = 0
    cdef size_t placed = 0
    cdef size_t i
    while range_ != NULL:
        count += 1
        placed += range_.base != 0 and not has_recorded_addresses(engine)
        range_ = range_.next
    if count != engine.range_count or placed != engine.placed_count:
        violated("all ranges are found by address", f"{engine.placed_count} of {engine.range_count} noted, "
               f"{placed} of {count} found")
    for i in range(1, placed):
        before = engine.by_address[i - 1]
        if engine.by_address[i].base < before.base + before.size:
            violated("ranges do not overlap", f"{before.base:#x}+{before.size} and {engine.by_address[i].base:#x}")
    return 0


cdef int check_ranges(Engine* engine, Totals* totals) except -1:
    cdef Range* range_ = engine.first_range
    cdef Counting counting = Counting(engine, totals, 0, NULL)
    check_order(engine)
    while range_ != NULL:
        if range_.head != NULL:
            check_tiling(range_)
            if range_.views != NULL:
                check_views(range_)
            if range_.free_list.half.pool.placement.walk == NULL:
                count_range(&counting, range_)
        range_ = range_.next
    return check_counted(&counting)


# --- counters ----------------------------------------------------------------------------------------------

cdef int check_tally(str name, const Tally* tally, const count_t* found) except -1:
    cdef int size_class
    for size_class in range(2):
        if tally_of(tally, size_class) != found[size_class]:
            violated("counters agree with the blocks", f"{name}.{('small_pool', 'large_pool')[size_class]} is "
                   f"{tally_of(tally, size_class)}, but there is {found[size_class]}")
        if tally.room[size_class] < 0 or tally.ceiling[size_class] > tally.peak[size_class]:
            violated("no class has room above its peak", name)
    if tally.ceiling[SMALL] + tally.ceiling[LARGE] > tally.peak[ALL]:
        violated("the classes together have no room above their peak", name)
    return 0


cdef int check_counters(Engine* engine, const Totals* totals) except -1:
    check_tally("allocation", &engine.stats.allocation, totals.allocation)
    check_tally("allocated_bytes", &engine.stats.allocated_bytes, totals.allocated_bytes)
    check_tally("active", &engine.stats.active, totals.active)
    check_tally("active_bytes", &engine.stats.active_bytes, totals.active_bytes)
    check_tally("requested_bytes", &engine.stats.requested_bytes, totals.requested_bytes)
    check_tally("inactive_split", &engine.stats.inactive_split, totals.inactive_split)
    check_tally("inactive_split_bytes", &engine.stats.inactive_split_bytes, totals.inactive_split_bytes)
    check_tally("segment", &engine.stats.segment, totals.segment)
    check_tally("reserved_bytes", &engine.stats.reserved_bytes, totals.reserved_bytes)
    if <count_t> address_count(engine) != totals.allocation[SMALL] + totals.allocation[LARGE]:
        violated("the address map holds only allocated blocks", f"{address_count(engine)} addresses")
    return 0


# --- pools ---------------------------------------------------------------------------------------------------

cdef int check_away(Engine* engine, Pool* pool, Totals* totals) except -1:
    """Check that a paused pool's released bytes are those of its pages without memory, and do not count as reserved."""
    cdef Range* range_ = engine.first_range
    cdef bytes_t missing[2]
    missing[SMALL] = missing[LARGE] = 0
    while range_ != NULL:
        if range_.free_list.half.pool == pool and range_.views != NULL:
            missing[range_.free_list.half.size_class] += missing_of(range_)
        range_ = range_.next
    if missing[SMALL] != pool.small.away or missing[LARGE] != pool.large.away:
        violated("a paused pool knows what it has released", f"({pool.first}, {pool.second}): "
               f"{pool.small.away} and {pool.large.away} noted, {missing[SMALL]} and {missing[LARGE]} found")
    totals.reserved_bytes[SMALL] -= pool.small.away
    totals.reserved_bytes[LARGE] -= pool.large.away
    return 0


cdef int check_tenants(Engine* engine) except -1:
    """Check that tenants' memory is counted correctly, and only while one of them has a limit."""
    cdef bytes_t[TENANTS_MOST][3] sums
    cdef int tenant
    if engine.trace.counting != (engine.accounts != NULL):
        violated("tenants' memory is counted where they have accounts", f"{engine.trace.counting}")
    if engine.accounts == NULL:
        return 0
    tenants_sum(engine, sums)
    for tenant in range(TENANTS_MOST):
        if sums[tenant][1] != engine.accounts[tenant].held:
            violated("an account knows what its tenant holds",
                   f"tenant {tenant}: {engine.accounts[tenant].held} noted, {sums[tenant][1]} found")
    return 0


cdef int check_slow_path_reasons(Engine* engine) except -1:
    cdef Pool* pool = engine.first_pool
    cdef count_t limits = engine.soft_limit != no_limit()
    cdef count_t tags = 0
    cdef count_t sleepers = 0
    while pool != NULL:
        limits += has_limits(&pool.limits)
        tags += pool.tag != 0
        sleepers += pool.sleepers - (pool.sleeps_with != 0)
        pool = pool.next
    if limits != engine.limit_count or tags != engine.tag_count:
        violated("the engine counts limits and tags", f"{limits} and {tags} found")
    if sleepers != 0:
        violated("a tag's pool counts the pools that sleep with it", f"{sleepers} too many")
    if (engine.slow_path_reasons & FOR_ROUTES != 0) != (engine.routes != NULL) or (
            engine.slow_path_reasons & FOR_TENANTS != 0) != (engine.accounts != NULL):
        violated("requests take the slow path where they need it", f"{engine.slow_path_reasons}")
    return 0


cdef int check_pool(Engine* engine, Pool* pool, Totals* totals) except -1:
    cdef Counting counting = Counting(engine, totals, 0, NULL)
    cdef Range* range_ = engine.first_range
    cdef Totals counted_already
    if pool.small.arena != pool.large.arena or (pool.large.arena != NULL and pool.small.free_lists != NULL):
        violated("the halves of a pool have one arena, and its blocks belong to the large half",
               f"({pool.first}, {pool.second})")
    pool.placement.check(engine, pool, totals)
    if pool.placement.walk != NULL:
        pool.placement.walk(engine, pool, count_part, &counting)
        check_counted(&counting)
    else:
        memset(&counted_already, 0, sizeof(Totals))
        counting.totals = &counted_already      # together with the other ranges
        while range_ != NULL:
            if range_.free_list.half.pool == pool:
                count_range(&counting, range_)
            range_ = range_.next
    check_away(engine, pool, totals)
    counting.reserved -= pool.small.away + pool.large.away
    if counting.reserved != pool.reserved_bytes:
        violated("a pool knows what it has reserved",
               f"({pool.first}, {pool.second}): {pool.reserved_bytes} noted, {counting.reserved} found")
    return 0


cdef int check_pools(Engine* engine, Totals* totals) except -1:
    cdef Pool* pool = engine.first_pool
    cdef count_t freeable = 0
    cdef count_t lenders = 0
    cdef count_t lent = 0
    check_pool(engine, &engine.defaults, totals)
    while pool != NULL:
        check_pool(engine, pool, totals)
        if pool_find(engine, pool.first, pool.second) != pool:
            violated("pools are found by their id", f"({pool.first}, {pool.second})")
        if pool.freeable != (pool.use_count == 0):
            violated("a pool is freeable when it has no user", f"({pool.first}, {pool.second})")
        freeable += pool.freeable
        lenders += pool.use_on_oom
        lent += pool.lent
        pool = pool.next
    if freeable != engine.freeable_count or lenders != engine.lender_count or lent != engine.lent_count:
        violated("the engine counts freeable pools and lenders", f"{freeable}, {lenders} and {lent} found")
    return 0


# --- waiting -----------------------------------------------------------------------------------------------

cdef int check_waiting_in(Range* range_, dict events, set deferred, set held_free) except -1:
    """Check a range and all that follow it."""
    cdef Block* block
    cdef bint put_off_now
    while range_ != NULL:
        block = range_.head
        while block != NULL:
            if block.event_count != events.get(<uint64_t> block, 0) + (block.address in held_free):
                violated("a block counts the events it waits for", describe_block(block))
            put_off_now = block.withheld == DEFERRED
            if put_off_now != (<uint64_t> block in deferred) or not block.allocated and (
                    block.uses != NULL) != put_off_now:
                violated("freed blocks with recorded streams are deferred", describe_block(block))
            block = block.next
        range_ = range_.next
    return 0


cdef set check_holds(Engine* engine):
    """Check that shared blocks have other processes as users, or are freed and needed there; return the latter."""
    cdef size_t i
    cdef Hold* hold
    cdef StreamUse* use
    cdef set held_free = set()
    for i in range(engine.holds.mask + 1):
        if engine.holds.slots[i].key == 0:
            continue
        hold = <Hold*> engine.holds.slots[i].value
        use = hold.block.uses
        while use != NULL and use.stream != &engine.elsewhere:
            use = use.next
        if hold.block.address != engine.holds.slots[i].key:
            violated("shared blocks are known by their address", describe_block(hold.block))
        if hold.freed == hold.block.allocated or hold.freed == (use != NULL):
            violated("other processes are users of the shared blocks that are in use", describe_block(hold.block))
        if hold.freed:
            if not is_needed_elsewhere(hold):
                violated("a shared block that was freed is needed elsewhere", describe_block(hold.block))
            held_free.add(hold.block.address)
    if engine.elsewhere.users != <count_t> (engine.holds.count - len(held_free)):
        violated("other processes are users of the shared blocks that are in use", f"{engine.elsewhere.users} uses")
    return held_free


cdef int check_waiting(Engine* engine) except -1:
    """Check that each pending block waits for as many events as it counts, or is deferred."""
    cdef StreamRecord* stream = engine.first_waiting
    cdef PendingEvent* pending
    cdef Deferred* put_off
    cdef Pool* pool = &engine.defaults
    cdef dict events = {}
    cdef set deferred = set()
    cdef set held_free
    while stream != NULL:
        if stream.first == NULL:
            violated("streams in the queue wait for something", f"stream {stream.handle}")
        pending = stream.first
        while pending != NULL:
            events[<uint64_t> pending.block] = events.get(<uint64_t> pending.block, 0) + 1
            pending = pending.next
        stream = stream.next_waiting
    put_off = engine.first_deferred
    while put_off != NULL:
        if put_off.block.allocated or not put_off.block.withheld:
            violated("deferred blocks are free for their users", describe_block(put_off.block))
        deferred.add(<uint64_t> put_off.block)
        put_off = put_off.next
    held_free = check_holds(engine)
    check_waiting_in(engine.first_range, events, deferred, held_free)
    while pool != NULL:
        if pool.placement.ranges != NULL:
            check_waiting_in(pool.placement.ranges(engine, pool), events, deferred, held_free)
        pool = engine.first_pool if pool == &engine.defaults else pool.next
    return 0


cdef int check_engine(Engine* engine) except -1:
    cdef Totals totals
    memset(&totals, 0, sizeof(Totals))
    check_ranges(engine, &totals)
    check_pools(engine, &totals)
    check_counters(engine, &totals)
    check_waiting(engine)
    check_tenants(engine)
    check_slow_path_reasons(engine)
    if engine.direct_leaving > <size_t> allotment_lock_out(&engine.lock.word):
        violated("memory being returned to the device has a thread that will come back", f"{engine.direct_leaving} are")
    return 0
