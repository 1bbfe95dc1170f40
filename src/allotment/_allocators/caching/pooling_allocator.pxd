"""An engine with private pools: made and given up by id, routed to, saved and restored.

`pools` has the objects that users hold instead of ids.
"""

from allotment._allocators.caching.recording_allocator cimport RecordingAllocator
from allotment._core.model.model cimport Pool as EnginePool

cdef class PoolingAllocator(RecordingAllocator):
    cdef EnginePool* find_pool(self, object pool) except NULL    # pre: inside the engine; left if there is none
