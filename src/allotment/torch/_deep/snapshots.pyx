from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.history cimport History
from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_PENDING_FREE, Arrangement, BlockCopy, SegmentCopy, arrangement_clear, walk_segments)
from allotment._core.engine cimport engine_leave
from allotment._core.records.trace cimport TraceRecord
from allotment.torch._deep.failing cimport note
from allotment.torch._deep.header cimport (
    allotment_block, allotment_points, allotment_record, allotment_segment, allotment_snapshot_visitor)
from allotment.torch._deep.history cimport shown_context, tell_record
from allotment.torch._deep.served cimport used_allocator

from allotment._settings.record import text_in_force


cdef int snapshot(int device, uint64_t first, uint64_t second, int with_records,
                  const allotment_snapshot_visitor* visitor) noexcept with gil:
    cdef Allocator allocator
    cdef Arrangement arrangement
    cdef TraceRecord* copies = NULL
    cdef size_t count = 0
    cdef size_t i
    cdef bint ok
    cdef allotment_record told
    memset(&arrangement, 0, sizeof(Arrangement))
    try:
        allocator = used_allocator(device)
        if allocator.current_settings.placement != "torch":
            text = text_in_force(allocator.current_settings).encode()
            visitor.settings(visitor.self, text)
        for note_ in list(allocator.annotations):
            show_annotation(note_, visitor)
        if with_records:
            copies = History(allocator).copy_history(&count)
            for i in range(count):
                tell_record(&told, &copies[i], device)
                visitor.record(visitor.self, &told)
        allocator.enter()
        with nogil:
            ok = walk_segments(allocator.engine, first, second, &arrangement)
            engine_leave(allocator.engine)
        if not ok:
            raise MemoryError("the host has no memory for a snapshot")
        for i in range(arrangement.segment_count):
            show_segment(&arrangement, &arrangement.segments[i], visitor)
        return 1
    except BaseException as error:
        return note(error)
    finally:
        free(copies)
        arrangement_clear(&arrangement)


cdef int show_annotation(dict annotation, const allotment_snapshot_visitor* visitor) except -1:
    visitor.annotation(visitor.self, annotation["device"], annotation["time_us"])
    for key, value in annotation.items():
        if key not in ("device", "time_us"):
            visitor.pair(visitor.self, str(key).encode(), str(value).encode())
    return 0


cdef void show_segment(const Arrangement* arrangement, const SegmentCopy* segment,
                       const allotment_snapshot_visitor* visitor) noexcept nogil:
    cdef const BlockCopy* block
    cdef allotment_segment told
    cdef allotment_block piece
    cdef size_t i
    told.address = segment.address
    told.total = segment.total
    told.allocated = segment.allocated
    told.active = segment.active
    told.requested = segment.requested
    told.stream = segment.stream
    told.pool_first = segment.pool_first
    told.pool_second = segment.pool_second
    told.context = shown_context(segment.context)
    told.number = segment.number
    told.is_small = segment.is_small
    told.is_expandable = segment.is_expandable
    visitor.segment(visitor.self, &told)
    for i in range(segment.block_count):
        block = &arrangement.blocks[segment.first_block + i]
        piece.address = block.address
        piece.size = block.size
        piece.requested = block.requested
        piece.allocated = block.state == STATE_ALLOCATED
        piece.active = block.state == STATE_ALLOCATED or block.state == STATE_PENDING_FREE
        piece.context = shown_context(block.context)
        visitor.block(visitor.self, &piece)


cdef void fill_snapshots(allotment_points* table) noexcept:
    table.snapshot = snapshot
