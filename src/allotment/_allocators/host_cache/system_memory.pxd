"""The source and destination of uncached host memory: one pair of functions.

A System is that pair with its `self`. `aligned_memory` is the process's own: 64-byte aligned memory of the C library.
Others exist for tests (one that fails when told to) and for memory of another kind.

A System is never destroyed: all memory that it provided refers to it, and may return at any time.

    allocate    NULL means "no memory", except for size 0, where it is an ordinary result
    free        `memory` is not NULL

Both are called without any lock and may be called on any thread, with or without the interpreter lock.
"""

from libc.stddef cimport size_t
from libc.string cimport memset

from allotment._core.contract.types cimport address_t, bytes_t

cdef struct System:
    void* self
    void* (*allocate)(void* self, size_t size) noexcept nogil
    void (*free)(void* self, void* memory) noexcept nogil

cdef enum:
    ALIGNMENT = 64      # a cache line, and the widest vector register
    NO_FILL = -1

# For debugging: the byte to write over memory new from a system (0 is zero fill), and over memory that returns to it,
# if its size is known. Choose before memory is in use.
cdef struct Fill:
    int on_allocate
    int on_free

cdef System aligned_memory
cdef Fill fill


cdef inline bint system_allocate(System* system, bytes_t size, address_t* address) noexcept nogil:
    """Return whether there was memory."""
    cdef void* memory = system.allocate(system.self, size)
    if memory != NULL and fill.on_allocate != NO_FILL:
        memset(memory, fill.on_allocate, size)
    address[0] = <address_t> memory
    return memory != NULL or size == 0


cdef inline void system_free(System* system, address_t address, bytes_t size) noexcept nogil:
    """Address 0 is none; size 0 is unknown."""
    if address == 0:
        return
    if fill.on_free != NO_FILL:
        memset(<void*> address, fill.on_free, size)
    system.free(system.self, <void*> address)
