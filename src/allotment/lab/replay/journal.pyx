from libc.stdint cimport uint64_t
from libc.stdlib cimport free
from libc.string cimport memset

from allotment._core.contract.types cimport address_t
from allotment._core.model.model cimport Engine, Range
from allotment._core.records.trace cimport (
    ACTION_FREE_COMPLETED, ACTION_SEGMENT_ALLOC, ACTION_SEGMENT_MAP, ACTION_SEGMENT_UNMAP,
    TraceRecord)
from allotment._core.tools.arrays cimport make_room
from allotment.lab.replay.journal cimport Journal, LateFree, SegmentEvent
from allotment.lab.replay.tape cimport tape_hear

import numpy

cdef SegmentEvent[1] segment_event
cdef SegmentEvent[::1] segment_event_view = segment_event
cdef LateFree[1] late_free
cdef LateFree[::1] late_free_view = late_free

SEGMENT_EVENT: np.dtype[np.void] = numpy.asarray(segment_event_view).dtype
LATE_FREE: np.dtype[np.void] = numpy.asarray(late_free_view).dtype
assert SEGMENT_EVENT.itemsize == sizeof(SegmentEvent) and LATE_FREE.itemsize == sizeof(LateFree)


cdef uint64_t page_at(const Engine* engine, address_t address, uint64_t size) noexcept nogil:
    """Return the size of the pages there.

    Ranges are few; those of a placement other than PyTorch's are not in the list.
    """
    cdef const Range* range_ = engine.first_range
    while range_ != NULL:
        if range_.page > 0 and range_.base <= address < range_.base + range_.size:
            return range_.page
        range_ = range_.next
    return size


cdef void note_segment(Journal* journal, const TraceRecord* record) noexcept nogil:
    cdef SegmentEvent* event
    cdef bint in_pages = record.action == ACTION_SEGMENT_MAP or record.action == ACTION_SEGMENT_UNMAP
    if not make_room(<void**> &journal.segments, &journal.segment_room, journal.segment_count, sizeof(SegmentEvent)):
        journal.incomplete = True
        return
    event = &journal.segments[journal.segment_count]
    journal.segment_count += 1
    event.address = record.address
    event.size = record.size
    event.stream = record.stream
    event.pool_first = record.pool_first
    event.pool_second = record.pool_second
    event.page = page_at(journal.engine, record.address, record.size) if in_pages else 0
    event.call = journal.now
    event.obtained = record.action == ACTION_SEGMENT_ALLOC or record.action == ACTION_SEGMENT_MAP


cdef void note_late_free(Journal* journal, const TraceRecord* record) noexcept nogil:
    if not make_room(<void**> &journal.late, &journal.late_room, journal.late_count, sizeof(LateFree)):
        journal.incomplete = True
        return
    journal.late[journal.late_count].address = record.address
    journal.late[journal.late_count].call = journal.now
    journal.late_count += 1


cdef void journal_hear(void* listener, const TraceRecord* record) noexcept nogil:
    """A tracker of the engine's trace; `listener` is the journal."""
    cdef Journal* journal = <Journal*> listener
    if journal.tape != NULL:
        tape_hear(journal.tape, record)
    if ACTION_SEGMENT_ALLOC <= record.action <= ACTION_SEGMENT_UNMAP:
        note_segment(journal, record)
    elif record.action == ACTION_FREE_COMPLETED and record.address != journal.freeing:
        note_late_free(journal, record)


cdef void journal_clear(Journal* journal) noexcept nogil:
    free(journal.segments)
    free(journal.late)
    memset(journal, 0, sizeof(Journal))
