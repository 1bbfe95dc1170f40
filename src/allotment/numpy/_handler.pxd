"""NumPy's memory through its own interface: four C functions (NEP 49).

    malloc    from `threshold` bytes on from the allocator, less from NumPy's own functions
    calloc    the same; the system supplies zero pages as they are touched, where that is cheaper than writing zeros
    realloc   a block stays if it still fits, else moves; memory from the system stays with the system
    free      returns memory to its source

There is no header in front of an array. The address tells the source: blocks begin at multiples of 512, which the
system's rarely do, and the engine knows the rest.

A handler is used in one of two ways. In a *context* it is an object of its own, which NumPy keeps with each array
created there; so the handler, and its allocator, live until the last of them is gone. For the *process* it replaces the
functions of NumPy's default handler, which threads start with. Arrays then do not tell which of several allocators was
theirs, so all that were ever installed are asked in turn, and live for ever.

Locks: NumPy may call from any thread, with or without the interpreter lock. The entry points take the engine's lock,
and release the interpreter's before they wait. Everything written here is a single word, written atomically.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.caching.entry_points cimport EntryPoints

cdef struct DataAllocator:      # NumPy's PyDataMemAllocator
    void* context
    void* (*malloc)(void* context, size_t size) noexcept nogil
    void* (*calloc)(void* context, size_t count, size_t each) noexcept nogil
    void* (*realloc)(void* context, void* address, size_t size) noexcept nogil
    void (*free)(void* context, void* address, size_t size) noexcept nogil

cdef struct DataHandler:        # NumPy's PyDataMem_Handler, of version 1
    char[127] name
    unsigned char version
    DataAllocator allocator

cdef struct Cache:
    DataHandler handler         # for a context; its functions get the cache itself
    EntryPoints* table
    size_t threshold
    uint64_t live               # atomic; bytes of blocks that arrays have
    uint64_t peak               # atomic; peak of `live` since it was last taken
    Cache* next                 # installed before this one


cdef class NumpyCache:
    cdef object tenant
    cdef object capsule         # owns `cache`
    cdef Cache* cache
    cdef object __weakref__
