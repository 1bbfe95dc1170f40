"""How C code allocates host memory: one table of functions.

A table is found in a capsule named "allotment.cpu.EntryPoints", which `CachingAllocator.entry_points()` (one
allocator) and `allotment.cpu.entry_points()` (the default allocator) return. It lives as long as the process.
Every function may be called on any thread, with or without the interpreter lock; none raises.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment.core.exact_cache cimport Cache

cdef enum:
    ENTRY_POINTS_VERSION = 1

cdef enum EntryError:
    ENTRY_OK = 0
    ENTRY_OUT_OF_MEMORY = 1
    ENTRY_NOT_ALLOCATED = 2     # a checked cache: no memory of ours begins there; nothing was done
    ENTRY_ALREADY_FREE = 3      # it is cached already; nothing was done

cdef struct EntryPoints:
    size_t size                 # of this struct: a later version only adds fields
    uint32_t version
    void* ctx                   # to be passed to each function
    void* (*allocate)(void* ctx, size_t size) noexcept nogil        # NULL: size 0, or see take_error
    void (*free)(void* ctx, void* memory) noexcept nogil            # NULL is fine
    void (*record_free)(void* ctx, void* memory) noexcept nogil     # it is being freed by other means
    int (*take_error)(void* ctx) noexcept nogil                     # this thread's last EntryError, once

# The table of a cache, which must live as long as whoever has the table; NULL is the default allocator's.
cdef EntryPoints entry_points_of(Cache* cache) noexcept nogil
