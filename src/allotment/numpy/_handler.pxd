"""NumPy's memory, as NumPy asks for it: four C functions and what they are for (NEP 49).

    malloc    from `threshold` bytes on from the allocator, less from NumPy's own functions
    calloc    the same; zeros come from the system, page by page as they are touched, where that is cheaper than writing
    realloc   a block stays where it is if it still fits, else moves; what came from the system stays with the system
    free      back to whom it came from

Nothing is written in front of an array. Whose memory it is says the address: blocks begin at multiples of 512, which
the system's hardly do, and the rest the engine knows.

A handler goes in one of two ways. In a *context* it is an object of its own, which NumPy keeps with each array made
there; so it, and its allocator, live until the last of them is gone. For the *process* the functions of NumPy's default
handler are replaced: that is the one that threads start with. Arrays do not tell then which of several allocators was
theirs, so all that were ever installed are asked in turn, and live for ever.

The lock story: NumPy may call from any thread, with or without the interpreter lock. The entry points take the engine's
lock, and let go of the interpreter's before they wait. What is written here is a word each, atomically.
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
    uint64_t peak               # atomic; the most of that since it was last asked for
    Cache* next                 # installed before this one


cdef class NumpyCache:
    cdef object tenant
    cdef object capsule         # of `cache`, which it owns
    cdef Cache* cache
    cdef object __weakref__
