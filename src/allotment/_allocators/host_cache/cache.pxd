from allotment._allocators.host_cache.entry_points cimport CpuEntryPoints
from allotment._allocators.host_cache.exact_cache cimport Cache
from allotment._allocators.host_cache.host_memory cimport HostMemory
from allotment._allocators.host_cache.python_memory cimport PythonMemory

cdef class CachingAllocator(HostMemory):
    cdef Cache* cache
    cdef PythonMemory memory    # the source of new memory; None: the system
    cdef CpuEntryPoints table   # filled on first use
    cdef object __weakref__

    cdef object allocate_bytes(self, object size)
    cdef int free_address(self, object given) except -1
    cdef int raise_out_of_memory(self, object size) except -1
