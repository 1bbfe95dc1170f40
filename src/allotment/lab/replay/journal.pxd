"""A record of what a replay did: the place of every block, and the memory obtained and released.

From these three lists the state of memory at any moment follows, without making the calls again: a block has one place
for all of its life, and the calls themselves say when lives begin and end. Only two things do not follow from the
calls, so the engine reports them: memory obtained or released, and when a free that waited was completed.

The history bounds the journal: one place for each block, one line for each entry about a segment or a late free.
"""

from libc.stddef cimport size_t
from libc.stdint cimport int32_t, uint64_t

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Block, Engine
from allotment._core.records.trace cimport TraceRecord
from allotment.lab.replay.tape cimport Tape

cdef packed struct SegmentEvent:
    uint64_t address
    uint64_t size
    uint64_t stream
    uint64_t pool_first, pool_second
    uint64_t page               # memory is obtained and released in these; 0: the segment as a whole
    int32_t call                # the call in which it happened; -1 before the history
    int32_t obtained            # 1: obtained; 0: released

cdef packed struct LateFree:
    uint64_t address
    int32_t call                # the call that completed it

cdef struct Journal:
    Engine* engine
    Tape* tape                  # that gets the entries too; NULL for none
    int32_t now                 # the call that is being made
    address_t freeing           # the address that this call frees: not recorded if that completes at once
    address_t* address          # by block
    bytes_t* size
    int32_t* placed_by          # the call that made it; -1 before the history
    SegmentEvent* segments
    size_t segment_count, segment_room
    LateFree* late
    size_t late_count, late_room
    bint incomplete             # the host had no memory for a line

cdef void journal_hear(void* journal, const TraceRecord* record) noexcept nogil
cdef void journal_clear(Journal* journal) noexcept nogil


cdef inline void journal_note(Journal* journal, int32_t number, const Block* block) noexcept nogil:
    """Record the place of a block of the workload."""
    journal.address[number] = block.address
    journal.size[number] = block.size
    journal.placed_by[number] = journal.now
