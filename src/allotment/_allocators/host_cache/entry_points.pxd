"""How C code allocates host memory: one table of functions.

A table is found in a capsule named "allotment.cpu.entry_points", which `CachingAllocator.entry_points()` (one
allocator) and `allotment.cpu.entry_points()` (the default allocator) return. It lives as long as the process. No
exception crosses it: a call that fails returns NULL or 0, and `last_error` returns the text, per thread. Every function
may be called on any thread, with or without the interpreter lock.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._allocators.host_cache.exact_cache cimport Cache

cdef enum:
    CPU_ENTRY_VERSION = 1

cdef struct CpuEntryPoints:
    size_t size             # of this struct, as the package was compiled
    uint32_t version
    void* context           # first argument of every function
    void* (*allocate)(void* context, size_t size) noexcept nogil
    int (*free)(void* context, void* memory) noexcept nogil
    int (*record_free)(void* context, void* memory) noexcept nogil      # other code is freeing it
    size_t (*last_error)(void* context, char* text, size_t capacity) noexcept nogil

# The table of a cache, which must live as long as any user of the table; NULL: the default allocator's.
cdef CpuEntryPoints entry_points_of(Cache* cache) noexcept nogil
