"""What a replay did, kept while it runs: where every block was put, which memory was obtained and given back.

From these three lists memory can be drawn at any moment, without making the calls again: a block has one place for all
of its life, and the calls themselves say when lives begin and end. Only two things do not follow from the calls, and so
are heard from the engine: memory obtained or given back, and when a free that waited was completed.

A journal is bounded by the history: one place for each block, one line for each entry about a segment or a late free.
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
    uint64_t page               # memory comes and goes in these; 0: the segment as a whole
    int32_t call                # in which it happened; -1 before the history
    int32_t obtained            # 1, or 0: given back

cdef packed struct LateFree:
    uint64_t address
    int32_t call                # that completed it

cdef struct Journal:
    Engine* engine
    Tape* tape                  # that hears the entries too; NULL for none
    int32_t now                 # the call that is being made
    address_t freeing           # what this call frees: no news if that completes at once
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
    """A block of the workload has its place."""
    journal.address[number] = block.address
    journal.size[number] = block.size
    journal.placed_by[number] = journal.now
