"""The caching allocator: requests and frees, and the engine that it holds for Python.

What belongs together beyond that is in its parts (`history`, `pools`, `limits`, `sleep`, `sharing`, `inspection`). They
are views: the allocator has all their state (see `parts`).

The interpreter lock and the engine's lock are never waited for in a circle: code that holds the interpreter lock only
*tries* the engine's; if that fails it lets the interpreter go first. A request that hits the cache keeps the
interpreter lock throughout. As long as no thread can come in without that (see `interpreter_lock_suffices`), it needs
no other lock. A request that has to ask the device takes the engine's lock and releases the interpreter lock.
"""

from libc.stdint cimport uint32_t

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.caching.annotations cimport Annotations
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._core.contract.types cimport address_t, bytes_t, stream_t, thread_t
from allotment._core.model.model cimport Block, Engine, Failure, Request
from allotment._core.records.history cimport gather_t

cdef enum Level:                # contexts are gathered for
    NEVER                       # nothing
    PACED                       # nothing, but a history file is behind which requests wait
    STATE                       # blocks, as snapshots show them
    ALLOC                       # and entries of the history
    EVERYTHING                  # and frees in their own right

cdef class Allocator(AllocatorBase):
    cdef Engine* engine
    cdef int level                      # a Level
    cdef object recorder                # gives contexts instead of Python's stack; None: there is none
    cdef gather_t gather                # the framework's; NULL: there is none
    cdef set recording                  # threads that are in it
    cdef object rules                   # of the version that the settings name
    cdef dict reserve_classes           # stream -> class of expandable_segments_reserve_by_class
    cdef Annotations profiler           # None: none is told
    cdef int pointer_holders            # tables of C entry points that refer to the engine, which must outlive them
    cdef object calm                    # a Stream that never has work: see `ready_for`; None until it is needed
    # The address that `malloc` returned last, also as a Python int. A block that is allocated and freed again and again
    # has the same address each time, and making the int costs as much as the allocation.
    cdef address_t returned_address
    cdef object returned
    cdef object sanitizer               # a Sanitizer, or None. With one, requests never take the short way

    # The history's.
    cdef list trackers, annotations
    cdef object most_annotations
    cdef HistoryFile file               # None: the history is kept in memory
    cdef list ended_files               # kept where C code may look at one at any time
    # The pools'.
    cdef set lent                       # ids of pools that are: see `lending`
    cdef list forgotten_pools           # (id, whether by its maker) given up from inside the engine: see `Pools.close`
    # The limits'.
    cdef object chain                   # a Chain; None until it has a step
    cdef list callbacks                 # free-memory callbacks, which the engine points at
    cdef list removed_callbacks         # that a thread may be in the middle of
    # Sleep's.
    cdef dict kept                      # (first, second) of each pool that sleeps -> its Contents, None if not kept
    cdef dict paused_for                # (first, second) of those that were paused for a tenant -> its name
    cdef set waking                     # threads that bring contents back

    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant)
    cdef object allocate_read(self, bytes_t size, stream_t stream, thread_t thread, uint32_t tenant)
    cdef object ready_for(self, object size, object stream, uint32_t tenant)
    cdef object ready_without_waiting(self, object size, stream_t handle, object stream, uint32_t tenant)
    cdef int make_calm_stream(self) except -1
    cdef object allocate_after_miss(self, Request* request)
    cdef object allocate_locking(self, Request* request)
    cdef address_t try_once(self, Request* request) except? 0
    cdef address_t try_quietly(self, Request* request) except? 0
    # The rest of a request that failed: an address, or the exception. Also for callers in C
    cdef object allocate_after_failure(self, Request* request)
    cdef bytes_t checked_size(self, object given) except? 0
    cdef int raise_out_of_memory(self, object error) except -1
    # Callers of all functions hold the interpreter lock. Those named `locking` also take the engine's.
    cdef int free_from_stream(self, address_t address, stream_t stream) except -1
    cdef int free_locking(self, address_t address, uint32_t context, void* buffer) except -1
    cdef int finish_free_locking(self, Block* block, address_t address, uint32_t context) except -1

    cdef uint32_t request_context(self) except? 0xFFFFFFFF
    cdef uint32_t stack_now(self) except? 0xFFFFFFFF     # the calling thread's context
    cdef uint32_t recorded_stack(self) except? 0xFFFFFFFF

    cdef int enter(self) except -1
    cdef void wait_outside(self) noexcept
    # Around the making of Python objects inside: a collection there would run finalizers, functions of others, under
    # the lock. What the first returns the second wants back.
    cdef bint enter_making_objects(self) except -1
    cdef void leave_making_objects(self, bint collects) noexcept
    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil
    cdef object failed(self, const Failure* failure)
    # If the cache was given back for it, unless steps of `on_out_of_memory` are asked first.
    cdef int log_retry(self, const Request* request, bint served) except -1
    cdef bint has_say(self) except -1            # whether there are such steps

    cdef int watch(self) except -1
    cdef object allocate_watched(self, Request* request)
    cdef int free_into_quarantine(self, address_t address, uint32_t context) except -1
    cdef int free_quarantined(self, list addresses) except -1
