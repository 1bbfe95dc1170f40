"""The allocator for C: one versioned table of functions that need no interpreter lock.

For frameworks, kernels and foreign runtimes. Get it from `entry_points(allocator)`; it, and the
engine behind it, stay valid until the process ends. No exception crosses it: a call that fails returns
NULL (or 0), and `last_error` has the words, per thread. Callers may or may not hold the interpreter lock.
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
    # Requests on streams that `accepts` says yes to (NULL: all) are served by a private pool. It is called inside the
    # allocator, with `self`, which belongs to the route from then on: `drop` takes it back. A begin that fails has
    # taken nothing.
    int (*begin_allocate_to_pool)(void* context, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                                  void* self) noexcept nogil
    int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
    int (*release_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
    # A step of `on_out_of_memory`, and its end; a number by which it is ended, 0 if it is refused. Both take the
    # interpreter lock; the step is called without it.
    int (*on_out_of_memory)(void* context, step_t step, void* self, int tries) noexcept nogil
    int (*remove_step)(void* context, int step) noexcept nogil

# For an Allocator, or for a Tenant of one, which lives as long as the table: for ever, unless that is dropped by who
# knows all that could call it.
cdef EntryPoints* entry_points_of(object allocator) except NULL
cdef int entry_points_drop(EntryPoints* table) except -1

cdef struct Lent:               # the block that a request was given
    bytes_t size
    bint is_fresh               # its pages are as the device gave them: no one has had them
    bint is_plain               # it lies in a segment of the device's own, which is one mapping

# The same as `allocate` and `free` of the table, for those who have to know the block. A size of 0: the address is not
# of a block in use here, and nothing happened.
cdef void* allocate_block(EntryPoints* table, size_t size, void* stream, Lent* lent) noexcept nogil
cdef bytes_t free_block(EntryPoints* table, void* address) noexcept nogil
cdef bytes_t block_size(EntryPoints* table, void* address) noexcept nogil

# Whether the default stream has work, which may still use memory that was freed on it.
cdef bint default_stream_has_work(EntryPoints* table) noexcept nogil

# A framework's current stream of a device, in the calling thread. Asked for before the engine is entered, and only
# while it decides something: while a graph may be captured.
ctypedef stream_t (*current_t)(int device) noexcept nogil
cdef void follow_current_stream(EntryPoints* table, current_t current) noexcept nogil

# The calling thread's last failure, of any table; and as the exception that Python would have got.
cdef Failure* last_failure() noexcept nogil
cdef object last_exception(const EntryPoints* table)
