from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, qsort
from libc.string cimport memset

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_PENDING_FREE, Arrangement, BlockCopy, SegmentCopy, state_of)
from allotment._core.mechanism.pool cimport pool_find
from allotment._core.mechanism.ranges cimport first_range_of
from allotment._core.model.model cimport Block, Engine, Pool, Range
from allotment._core.records.stats cimport SMALL
from allotment._core.records.tenants cimport TENANT_SHIFT, TENANTS_MOST
from allotment._core.records.trace cimport ACTION_SNAPSHOT, trace_report
from allotment._core.tools.arrays cimport make_room


cdef void arrangement_clear(Arrangement* arrangement) noexcept nogil:
    free(arrangement.segments)
    free(arrangement.blocks)
    memset(arrangement, 0, sizeof(Arrangement))


cdef bint begin_segment(Arrangement* out, const Block* block, address_t address) noexcept nogil:
    cdef SegmentCopy* segment
    cdef Pool* pool = block.free_list.half.pool
    if not make_room(<void**> &out.segments, &out.segment_room, out.segment_count, sizeof(SegmentCopy)):
        return False
    segment = &out.segments[out.segment_count]
    out.segment_count += 1
    memset(segment, 0, sizeof(SegmentCopy))
    segment.address = address
    segment.stream = block.free_list.stream.handle
    segment.pool_first = pool.first
    segment.pool_second = pool.second
    segment.context = block.segment_context
    segment.is_small = block.free_list.half.size_class == SMALL
    segment.is_expandable = block.range.page != 0
    segment.first_block = out.block_count
    return True


cdef bint append_block(Arrangement* out, const Block* block, address_t address, bytes_t size) noexcept nogil:
    cdef SegmentCopy* segment = &out.segments[out.segment_count - 1]
    cdef BlockCopy* copy
    if not make_room(<void**> &out.blocks, &out.block_room, out.block_count, sizeof(BlockCopy)):
        return False
    copy = &out.blocks[out.block_count]
    out.block_count += 1
    copy.address = address
    copy.size = size
    copy.requested = block.requested
    copy.context = block.context
    copy.state = state_of(block)
    copy.stream = block.free_list.stream.handle
    segment.block_count += 1
    segment.total += size
    if copy.state == STATE_ALLOCATED:
        segment.allocated += size
    if copy.state == STATE_ALLOCATED or copy.state == STATE_PENDING_FREE:
        segment.active += size
        segment.requested += block.requested
    return True


cdef bint append_part(void* self, const Block* block, address_t address, bytes_t size, bint begins) noexcept nogil:
    cdef Arrangement* out = <Arrangement*> self
    return (not begins or begin_segment(out, block, address)) and append_block(out, block, address, size)


cdef bint append_pool(Engine* engine, Pool* pool, Arrangement* out) noexcept nogil:
    """Append the memory of a pool whose placement has its own walk."""
    return pool.placement.walk == NULL or pool.placement.walk(engine, pool, append_part, out)


cdef inline bint is_selected(const Range* range_, uint64_t first, uint64_t second) noexcept nogil:
    cdef Pool* pool = range_.free_list.half.pool
    return range_.head != NULL and pool.first == first and pool.second == second


cdef int by_address(const void* a, const void* b) noexcept nogil:
    cdef const SegmentCopy* left = <const SegmentCopy*> a
    cdef const SegmentCopy* right = <const SegmentCopy*> b
    return -1 if left.address < right.address else <int> (left.address > right.address)


cdef bint walk_segments(Engine* engine, uint64_t first, uint64_t second, Arrangement* out) noexcept nogil:
    """Copy the segments of everything, or of one private pool; sorts them by address and records the walk in the trace.

    Of a private pool's expandable range it lists only a run at the range's very start: PyTorch's rule.
    """
    cdef bint everything = first == 0 and second == 0
    cdef Range* range_ = engine.first_range
    cdef Pool* pool = engine.first_pool
    cdef Block* block
    cdef uint64_t active = 0
    cdef size_t i
    memset(out, 0, sizeof(Arrangement))
    while range_ != NULL:
        block = NULL
        if range_.free_list.half.pool.placement.walk == NULL and (everything or is_selected(range_, first, second)):
            block = range_.head
        while block != NULL:
            if block.mapped:
                if (block.prev == NULL or not block.prev.mapped) and not begin_segment(out, block, block.address):
                    return False
                if not append_block(out, block, block.address, block.size):
                    return False
            elif not everything:
                break
            block = block.next
        range_ = range_.next
    if everything and not append_pool(engine, &engine.defaults, out):
        return False
    while pool != NULL:
        if (everything or (pool.first == first and pool.second == second)) and not append_pool(engine, pool, out):
            return False
        pool = pool.next
    for i in range(out.segment_count):
        out.segments[i].number = <uint32_t> i
        active += out.segments[i].active
    if out.segment_count > 0:
        qsort(out.segments, out.segment_count, sizeof(SegmentCopy), &by_address)
    trace_report(&engine.trace, ACTION_SNAPSHOT, 0, active, 0, first, second, 0)
    return True


cdef bint walk_ranges(Engine* engine, uint64_t first, uint64_t second, Arrangement* out) noexcept nogil:
    """Copy the whole ranges of one pool, including unmapped blocks: what a checkpoint stores."""
    cdef Pool* pool = pool_find(engine, first, second)
    cdef Range* range_ = first_range_of(engine, pool) if pool != NULL else NULL
    cdef Block* block
    memset(out, 0, sizeof(Arrangement))
    while range_ != NULL:
        if is_selected(range_, first, second):
            block = range_.head
            if not begin_segment(out, block, block.address):
                return False
            while block != NULL:
                if not append_block(out, block, block.address, block.size):
                    return False
                block = block.next
        range_ = range_.next
    return True


cdef void add_tenants(const Range* range_, bytes_t[TENANTS_MOST][3] sums) noexcept nogil:
    """Add the blocks of a range and of those that follow it."""
    cdef Block* block
    cdef uint32_t who
    while range_ != NULL:
        block = range_.head
        while block != NULL:
            if block.allocated:
                who = block.context >> TENANT_SHIFT
                sums[who][0] += 1
                sums[who][1] += block.size
                sums[who][2] += block.requested
            block = block.next
        range_ = range_.next


cdef void tenants_sum(Engine* engine, bytes_t[TENANTS_MOST][3] sums) noexcept nogil:
    cdef Pool* pool = &engine.defaults
    memset(sums, 0, TENANTS_MOST * 3 * sizeof(bytes_t))
    add_tenants(engine.first_range, sums)
    while pool != NULL:
        if pool.placement.ranges != NULL:
            add_tenants(pool.placement.ranges(engine, pool), sums)
        pool = engine.first_pool if pool == &engine.defaults else pool.next
