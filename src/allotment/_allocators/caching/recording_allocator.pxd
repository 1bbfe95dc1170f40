"""An engine with its past: the history, trackers and annotations, and snapshots of all of it."""

from libc.stddef cimport size_t

from allotment._allocators.caching.engine_allocator cimport EngineAllocator
from allotment._core.records.trace cimport TraceRecord

cdef class RecordingAllocator(EngineAllocator):
    cdef list trackers, annotations
    cdef object most_annotations

    cdef bint replace_trackers(self, object gone, object new) except -1
    cdef TraceRecord* copy_history(self, size_t* count) except NULL
    cdef list history(self)
    cdef list mappings(self)
