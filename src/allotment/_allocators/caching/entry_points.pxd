"""The allocator for C: one versioned table of functions that need no interpreter lock.

For frameworks, kernels and foreign runtimes. Get the table from `entry_points(allocator)`; the table and its engine
stay valid until the process ends. No exception crosses it: a call that fails returns NULL (or 0), and `last_error`
returns the text, per thread. Callers may hold the interpreter lock or not.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.caching.c_steps cimport step_t
from allotment._core.contract.types cimport bytes_t, stream_t
from allotment._core.model.model cimport Failure, drop_t, filter_t

cdef enum:
    ENTRY_VERSION = 1

cdef struct EntryPoints:
    size_t size             # of this struct, as the package was compiled
    uint32_t version
    void* context           # first argument of every function
    void* (*allocate)(void* context, size_t size, int device, void* stream) noexcept nogil
    int (*free)(void* context, void* address, size_t size, int device, void* stream) noexcept nogil
    int (*record_stream)(void* context, void* address, void* stream) noexcept nogil
    int (*empty_cache)(void* context) noexcept nogil
    void* (*base_allocation)(void* context, void* address, size_t* size) noexcept nogil
    int (*set_memory_fraction)(void* context, double fraction, int device) noexcept nogil
    size_t (*last_error)(void* context, char* text, size_t capacity) noexcept nogil
    # A private pool serves requests on streams that `accepts` accepts (NULL: all). The allocator calls `accepts`
    # inside, with `self`, which the route then owns: `drop` releases it. A begin that fails takes over nothing.
    int (*begin_allocate_to_pool)(void* context, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                                  void* self) noexcept nogil
    int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
    int (*release_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
    # Adds an `on_out_of_memory` handler, and removes it. Returns a number for the removal, 0 if refused. Both acquire
    # the interpreter lock; the handler is called without it.
    int (*on_out_of_memory)(void* context, step_t step, void* self, int tries) noexcept nogil
    int (*remove_step)(void* context, int step) noexcept nogil

# The table of an Allocator, or of a Tenant. The table keeps the object alive for ever, unless code that knows all its
# callers drops the table.
cdef EntryPoints* entry_points_of(object allocator) except NULL
cdef int entry_points_drop(EntryPoints* table) except -1

cdef struct Lent:               # the block that serves a request
    bytes_t size
    bint is_fresh               # its pages come fresh from the device: no one has used them
    bint is_plain               # it lies in a plain segment, which is one mapping

# Variants of the table's `allocate` and `free` for callers that need to know the block. A size of 0 means that no block
# in use here has that address, and nothing happened.
cdef void* allocate_block(EntryPoints* table, size_t size, void* stream, Lent* lent) noexcept nogil
cdef bytes_t free_block(EntryPoints* table, void* address) noexcept nogil
cdef bytes_t block_size(EntryPoints* table, void* address) noexcept nogil

# Whether the default stream has work, which may still use memory that was freed on it.
cdef bint default_stream_has_work(EntryPoints* table) noexcept nogil

# Returns a framework's current stream of a device in the calling thread. Called before the engine is entered, and only
# while it matters: while a graph may be captured.
ctypedef stream_t (*current_t)(int device) noexcept nogil
cdef void follow_current_stream(EntryPoints* table, current_t current) noexcept nogil

# The calling thread's last failure, of any table; and the exception that Python would have raised for it.
cdef Failure* last_failure() noexcept nogil
cdef object last_exception(const EntryPoints* table)
