from libc.stddef cimport size_t
from libc.string cimport memset

from allotment._core.edge.walk cimport (
    STATE_ALLOCATED, STATE_INACTIVE, STATE_UNMAPPED, Arrangement, BlockCopy, SegmentCopy)

from allotment._core.tools.arrays cimport make_room

from allotment._allocators.caching.pool import BlockState, SegmentState


cdef tuple state_of_segments(const Arrangement* arrangement):
    """Return a pool's arrangement as readable records."""
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
                block.address, block.size, block.state == STATE_ALLOCATED, block.state != STATE_UNMAPPED,
                block.stream if block.stream != segment.stream else None))
        segments.append(SegmentState(
            segment.address, segment.stream, bool(segment.is_small), bool(segment.is_expandable), tuple(blocks)))
    return tuple(segments)


cdef int arrange_state(Arrangement* arrangement, object segments) except -1:
    """Convert the records that `restore_pool` gives to the engine.

    Any code may have made them, so each is read only once.
    """
    cdef SegmentCopy segment
    for state in tuple(segments):
        memset(&segment, 0, sizeof(SegmentCopy))
        segment.address = state.address
        segment.first_block = arrangement.block_count
        for recorded in tuple(state.blocks):
            append_recorded(arrangement, state, recorded)
        segment.block_count = arrangement.block_count - segment.first_block
        if not make_room(<void**> &arrangement.segments, &arrangement.segment_room, arrangement.segment_count,
                         sizeof(SegmentCopy)):
            raise MemoryError("the host has no memory for a pool's state")
        arrangement.segments[arrangement.segment_count] = segment
        arrangement.segment_count += 1
    return 0


cdef int append_recorded(Arrangement* arrangement, object segment, object recorded) except -1:
    cdef BlockCopy block
    memset(&block, 0, sizeof(BlockCopy))
    block.address = recorded.address
    block.size = recorded.size
    stream = recorded.stream
    block.stream = segment.stream if stream is None else stream
    block.state = STATE_UNMAPPED if not recorded.mapped else STATE_ALLOCATED if recorded.in_use else STATE_INACTIVE
    if not make_room(<void**> &arrangement.blocks, &arrangement.block_room, arrangement.block_count, sizeof(BlockCopy)):
        raise MemoryError("the host has no memory for a pool's state")
    arrangement.blocks[arrangement.block_count] = block
    arrangement.block_count += 1
    return 0
