"""The caching allocator: requests, frees, and who made them. Its bases have the rest: see base.pxd."""

from libc.stdint cimport uint32_t, uint64_t

from allotment._allocators.caching.sharing_allocator cimport SharingAllocator
from allotment._core.contract.types cimport address_t, bytes_t, stream_t, thread_t
from allotment._core.model.model cimport Block, Request

cdef class Allocator(SharingAllocator):
    cdef list callbacks         # free-memory callbacks, which the engine points at
    cdef list removed_callbacks     # that a thread may be in the middle of
    cdef object calm            # a Stream that never has work: see `ready_for`; None until it is needed
    cdef object sanitizer       # a Sanitizer, or None. With one, requests never take the short way: the long one asks

    cdef int watch(self) except -1
    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant)
    cdef object ready_for(self, object size, object stream, uint32_t tenant)
    cdef object ready_without_waiting(self, object size, stream_t handle, object stream, uint32_t tenant)
    cdef int make_calm_stream(self) except -1
    cdef object allocate_at(self, object size, object address, object stream, thread_t thread)
    cdef object allocate_after_miss(self, Request* request)
    cdef object allocate_inside(self, Request* request)
    cdef address_t try_once(self, Request* request) except? 0
    cdef address_t try_quietly(self, Request* request) except? 0
    cdef object allocate_watched(self, Request* request)
    cdef int release_watched(self, address_t address, uint32_t context) except -1
    cdef int falls_asleep(self, uint64_t first, uint64_t second) except -1
    cdef int has_woken(self, uint64_t first, uint64_t second, bint kept) except -1
    cdef int release_kept(self, list addresses) except -1
    # The rest of a request that failed: an address, or the exception. Also for callers in C
    cdef object allocate_after_failure(self, Request* request)
    cdef tuple read_wish(self, object request)
    cdef bytes_t checked_size(self, object given) except? 0
    cdef int raise_out_of_memory(self, object error) except -1
    # What `free` does, for callers in C. Written again there: a call more costs a pair from Python 3 ns of 80.
    # Only if `buffer` owns the block, unless it is NULL.
    cdef int release_address(self, address_t address, void* buffer=*) except -1
    cdef int release_working_on(self, address_t address, stream_t stream) except -1
    cdef int release_special(self, Block* block, address_t address, uint32_t context) except -1
    cdef int release_inside(self, address_t address, uint32_t context, void* buffer=*) except -1
