"""`allocator.history`: recording, trackers, annotations and snapshots."""

from libc.stddef cimport size_t

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._allocators.parts cimport Part
from allotment._core.records.trace cimport TraceRecord

cdef class History(Part):
    cdef Allocator allocator

    cdef int start_file(self, HistoryFile file) except -1
    cdef int end_file(self) except -1
    cdef list attached(self)
    cdef bint replace_trackers(self, object gone, object new) except -1
    cdef TraceRecord* copy_history(self, size_t* count) except NULL
    cdef list entries(self)
    cdef list mappings(self)
