"""An engine with its past: the history, trackers and annotations, and snapshots of all of it."""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._allocators.caching.engine_allocator cimport EngineAllocator
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._core.records.trace cimport TraceRecord

cdef class RecordingAllocator(EngineAllocator):
    cdef list trackers, annotations
    cdef object most_annotations
    cdef HistoryFile file               # None: the history is kept in memory
    cdef list ended_files               # kept where C code may look at one at any time

    cdef uint32_t request_context(self) except? 0xFFFFFFFF
    cdef int start_file(self, HistoryFile file) except -1
    cdef int end_file(self) except -1
    cdef bint replace_trackers(self, object gone, object new) except -1
    cdef TraceRecord* copy_history(self, size_t* count) except NULL
    cdef list history(self)
    cdef list mappings(self)
