from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free
from libc.string cimport memset

from allotment._allocators.pluggable.ledger cimport Entry, Ledger, ledger_copy
from allotment._core.contract.types cimport device_t
from allotment._core.edge.snapshot cimport segment_dicts
from allotment._core.edge.walk cimport STATE_ALLOCATED, Arrangement, BlockCopy, SegmentCopy, arrangement_clear
from allotment._core.model.sizes cimport SMALL_SIZE

import operator


cdef list segments_of(Ledger* ledger):
    cdef Entry* entries
    cdef size_t count, i
    with nogil:
        entries = ledger_copy(ledger, &count)
    if entries == NULL:
        raise MemoryError("the host has no memory for a snapshot")
    try:
        found = []
        for device in sorted({entries[i].device for i in range(count)}):
            found += segments_of_device(entries, count, device)
        return found
    finally:
        free(entries)


cdef list segments_of_device(const Entry* entries, size_t count, device_t device):
    """Return each entry of a device as a segment of one block, by address."""
    cdef Arrangement arrangement
    cdef SegmentCopy* segment
    cdef BlockCopy* block
    cdef size_t i
    memset(&arrangement, 0, sizeof(Arrangement))
    arrangement.segments = <SegmentCopy*> calloc(count + 1, sizeof(SegmentCopy))
    arrangement.blocks = <BlockCopy*> calloc(count + 1, sizeof(BlockCopy))
    try:
        if arrangement.segments == NULL or arrangement.blocks == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        for i in range(count):
            if entries[i].device != device:
                continue
            segment = &arrangement.segments[arrangement.segment_count]
            block = &arrangement.blocks[arrangement.block_count]
            segment.first_block = arrangement.block_count
            segment.block_count = 1
            arrangement.segment_count += 1
            arrangement.block_count += 1
            segment.address = block.address = entries[i].address
            segment.total = segment.allocated = segment.active = segment.requested = entries[i].size
            block.size = block.requested = entries[i].size
            block.state = STATE_ALLOCATED
            segment.stream = entries[i].stream
            segment.is_small = entries[i].size <= SMALL_SIZE
        return sorted(segment_dicts(&arrangement, device), key=operator.itemgetter("address"))
    finally:
        arrangement_clear(&arrangement)
