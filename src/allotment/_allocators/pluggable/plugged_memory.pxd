"""A user's functions, and the records of what they provided.

Each function is C code, called without the interpreter lock, or a Python callable. Both kinds may be mixed:

    malloc ── alloc(size, device, stream) ──> pointer ── entered in the ledger
    free   ── looked up in the ledger, forgotten ── free(pointer, size, device, stream) as entered

Locks: the ledger has its own lock, under which code touches only C data (see ledger.pxd). Functions are called outside
of it, so they may block, call back, and run on several threads at once; they must be safe for that. A pointer leaves
the ledger before its free function is called: in the other order another thread could get the same address in between,
and have its entry removed.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.pluggable.ledger cimport Ledger
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t

# The C types of the functions. A pool's id is two numbers, which is how a pair is passed by value.
ctypedef void* (*alloc_t)(size_t size, int device, void* stream) noexcept nogil
ctypedef void (*free_t)(void* pointer, size_t size, int device, void* stream) noexcept nogil
ctypedef void (*init_t)(int device_count) noexcept nogil
ctypedef void (*reset_t)() noexcept nogil
ctypedef void (*memory_fraction_t)(double fraction, int device) noexcept nogil
ctypedef void* (*base_alloc_t)(void* pointer, size_t* size) noexcept nogil
ctypedef void (*record_stream_t)(void* pointer, void* stream) noexcept nogil
ctypedef void (*begin_pool_t)(int device, uint64_t first, uint64_t second, void* filter) noexcept nogil
ctypedef void (*end_pool_t)(int device, uint64_t first, uint64_t second) noexcept nogil

cdef struct Functions:
    # NULL if it is a Python callable, or was not given.
    alloc_t alloc
    free_t free
    init_t init
    reset_t reset
    memory_fraction_t memory_fraction
    base_alloc_t base_alloc
    record_stream_t record_stream
    begin_pool_t begin_allocate_to_pool
    end_pool_t end_allocate_to_pool
    end_pool_t release_pool

cdef struct Plug:
    # Everything needed to allocate and free without the interpreter.
    Functions functions
    Ledger ledger
    void* owner             # the PluggedMemory around it

cdef struct Lender:
    # Where the pools of one device's allocator get their segments: the plug, with that device as an argument.
    Plug* plug
    device_t device
    Lender* next

cdef class PluggedMemory(AllocatorBase):
    cdef Plug plug
    cdef Lender* lenders        # see lending
    cdef bint has_device        # it was given one; else `device` is only a name
    cdef bint initialized
    cdef dict callables         # name of a function -> its Python callable
    cdef list kept_alive        # the objects that own the C functions

    cdef object deleter         # `raw_deleter`, once it was requested

    cdef int take_functions(self, dict given) except -1
    cdef int replace_function(self, str name, object given) except -1
    cdef void* read_function(self, str name, object given) except? NULL
    cdef int share_functions(self, PluggedMemory other) except -1
    cdef object call(self, str name, tuple arguments)       # the result of a Python callable; None without one
    cdef device_t device_index(self, object device) except? -1
    cdef address_t obtain(self, bytes_t size, device_t device, stream_t stream) except? 0
    cdef address_t ask_python(self, bytes_t size, device_t device, stream_t stream) except? 0
    cdef int hand_back(self, address_t address, bytes_t size, device_t device, stream_t stream) except -1
    cdef object facts(self, object size, device_t device, stream_t stream)

cdef object unknown_pointer(object address)
cdef object failed_function(str name, object error)
