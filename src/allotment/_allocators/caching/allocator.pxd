from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, stream_t, thread_t
from allotment._core.model.model cimport Block, Engine, Failure, Pool as EnginePool, Request
from allotment._core.records.trace cimport TraceRecord

cdef enum:
    ABSURD_POWER = 60           # requests of 2**60 bytes and up are refused unseen

cdef enum Level:                # contexts are gathered for
    NEVER                       # nothing
    STATE                       # blocks, as snapshots show them
    ALLOC                       # and entries of the history
    EVERYTHING                  # and frees in their own right

cdef class Allocator:
    cdef Engine* engine
    cdef readonly Device device
    cdef int level                      # a Level
    cdef object current_settings
    cdef list observers, callbacks, trackers, annotations
    cdef object most_annotations
    cdef list forgotten_pools           # closed from inside the engine: given up when it is entered next
    cdef bint shared_by_pointer         # C entry points refer to the engine: it must outlive everything
    cdef object __weakref__

    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF
    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant)
    cdef object allocate_after_miss(self, Request* request)
    cdef object allocate_inside(self, Request* request)
    cdef int enter(self) except -1
    cdef int close_forgotten_pools(self) except -1
    cdef void wait_outside(self) noexcept
    cdef long long checked_size(self, object given) except -1
    cdef int raise_out_of_memory(self, object error) except -1
    cdef object failed(self, const Failure* failure)
    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil
    # What `free` does, for callers in C. Written again there: a call more costs a pair from Python 3 ns of 80.
    cdef int release_address(self, address_t address) except -1
    cdef int release_special(self, Block* block, address_t address, uint32_t context) except -1
    cdef int release_inside(self, address_t address, uint32_t context) except -1
    cdef TraceRecord* copy_history(self, size_t* count) except NULL
    cdef list history(self)
    cdef EnginePool* find_pool(self, pool) except NULL
