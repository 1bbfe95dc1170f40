from libc.stddef cimport size_t
from libc.stdlib cimport calloc

from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_INACTIVE, STATE_UNMAPPED, Arrangement, BlockCopy, SegmentCopy)

from allotment._allocators.caching.pools import BlockState, SegmentState


cdef tuple state_of_segments(const Arrangement* arrangement):
    """A pool's arrangement as records that people can read."""
    cdef const SegmentCopy* segment
    cdef const BlockCopy* block
    cdef size_t i, j
    cdef list segments = []
    for i in range(arrangement.segment_count):
        segment = &arrangement.segments[i]
        blocks = []
        for j in range(segment.block_count):
            block = &arrangement.blocks[segment.first_block + j]
            blocks.append(BlockState(
                block.address, block.size, block.state == STATE_ALLOCATED, block.state != STATE_UNMAPPED))
        segments.append(SegmentState(
            segment.address, segment.stream, bool(segment.is_small), bool(segment.is_expandable), tuple(blocks)))
    return tuple(segments)


cdef int arrange_state(Arrangement* arrangement, tuple segments) except -1:
    """The other way: what `restore_pool` hands to the engine. The caller clears it, also after a failure."""
    cdef SegmentCopy* segment
    cdef BlockCopy* block
    arrangement.segments = <SegmentCopy*> calloc(len(segments) + 1, sizeof(SegmentCopy))
    arrangement.blocks = <BlockCopy*> calloc(sum(len(state.blocks) for state in segments) + 1, sizeof(BlockCopy))
    if arrangement.segments == NULL or arrangement.blocks == NULL:
        raise MemoryError("the host has no memory for a pool's state")
    for state in segments:
        segment = &arrangement.segments[arrangement.segment_count]
        arrangement.segment_count += 1
        segment.address = state.address
        segment.first_block = arrangement.block_count
        segment.block_count = len(state.blocks)
        for recorded in state.blocks:
            block = &arrangement.blocks[arrangement.block_count]
            arrangement.block_count += 1
            block.address = recorded.address
            block.size = recorded.size
            block.state = (STATE_UNMAPPED if not recorded.mapped
                           else STATE_ALLOCATED if recorded.in_use else STATE_INACTIVE)
    return 0
