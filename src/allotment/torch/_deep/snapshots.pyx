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
from allotment.torch._deep.bound_devices cimport bound_allocator
from allotment.torch._deep.failures cimport set_failure
from allotment.torch._deep.header cimport (
    allotment_block, allotment_interface, allotment_record, allotment_segment, allotment_snapshot_visitor)
from allotment.torch._deep.history cimport shown_context, fill_record

from allotment._settings.record import text_in_force


cdef int snapshot(int device, uint64_t first, uint64_t second, int with_records,
                  const allotment_snapshot_visitor* visitor) noexcept with gil:
    cdef Allocator allocator
    cdef Arrangement arrangement
    cdef TraceRecord* copies = NULL
    cdef size_t count = 0
    cdef size_t i
    cdef bint ok
    cdef allotment_record out
    memset(&arrangement, 0, sizeof(Arrangement))
    try:
        allocator = bound_allocator(device)
        if allocator.present_settings().placement != "torch":
            text = text_in_force(allocator.present_settings()).encode()
            visitor.settings(visitor.self, text)
        for annotation in list(allocator.present_annotations()):
            show_annotation(annotation, visitor)
        if with_records:
            copies = History(allocator).copy_history(&count)
            for i in range(count):
                fill_record(&out, &copies[i], device)
                visitor.record(visitor.self, &out)
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
        return set_failure(error)
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
    cdef allotment_segment out
    cdef allotment_block out_block
    cdef size_t i
    out.address = segment.address
    out.total = segment.total
    out.allocated = segment.allocated
    out.active = segment.active
    out.requested = segment.requested
    out.stream = segment.stream
    out.pool_first = segment.pool_first
    out.pool_second = segment.pool_second
    out.context = shown_context(segment.context)
    out.number = segment.number
    out.is_small = segment.is_small
    out.is_expandable = segment.is_expandable
    visitor.segment(visitor.self, &out)
    for i in range(segment.block_count):
        block = &arrangement.blocks[segment.first_block + i]
        out_block.address = block.address
        out_block.size = block.size
        out_block.requested = block.requested
        out_block.allocated = block.state == STATE_ALLOCATED
        out_block.active = block.state == STATE_ALLOCATED or block.state == STATE_PENDING_FREE
        out_block.context = shown_context(block.context)
        visitor.block(visitor.self, &out_block)


cdef void fill_snapshots(allotment_interface* table) noexcept:
    table.snapshot = snapshot
