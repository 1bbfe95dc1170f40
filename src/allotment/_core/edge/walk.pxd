"""The walk over segments behind snapshots: a copy of the arrangement, taken under the lock.

A segment begins at every mapped block whose previous neighbour is missing or unmapped, and continues while blocks are
mapped. So a plain range is one segment, and an expandable range has one for each mapped run. Copies hold only numbers;
Python objects are made from them after the lock is released.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.mechanism.block cimport is_idle
from allotment._core.model.model cimport Block, Engine
from allotment._core.records.tenants cimport TENANTS_MOST

cdef enum BlockState:
    STATE_INACTIVE
    STATE_ALLOCATED
    STATE_PENDING_FREE
    STATE_UNMAPPED      # only in arrangements of whole ranges

cdef struct BlockCopy:
    address_t address
    bytes_t size
    bytes_t requested
    uint32_t context
    int state
    stream_t stream             # the block's stream; may differ from its segment's where streams share segments

cdef struct SegmentCopy:
    address_t address
    bytes_t total, allocated, active, requested
    stream_t stream
    uint64_t pool_first, pool_second
    uint32_t context
    uint32_t number         # order of creation among the segments shown
    bint is_small
    bint is_expandable
    size_t first_block, block_count

cdef struct Arrangement:
    SegmentCopy* segments
    size_t segment_count, segment_room
    BlockCopy* blocks
    size_t block_count, block_room

cdef bint walk_segments(Engine* engine, uint64_t first, uint64_t second, Arrangement* out) noexcept nogil
cdef bint walk_ranges(Engine* engine, uint64_t first, uint64_t second, Arrangement* out) noexcept nogil
# Sums allocated blocks, bytes and requested bytes by tenant. Visits every block
cdef void tenants_sum(Engine* engine, bytes_t[TENANTS_MOST][3] sums) noexcept nogil
cdef void arrangement_clear(Arrangement* arrangement) noexcept nogil


cdef inline int state_of(const Block* block) noexcept nogil:
    if not block.mapped:
        return STATE_UNMAPPED
    if block.allocated:
        return STATE_ALLOCATED
    return STATE_INACTIVE if is_idle(block) else STATE_PENDING_FREE
