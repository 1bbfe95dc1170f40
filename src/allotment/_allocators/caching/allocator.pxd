"""The caching allocator: serves requests and frees from Python through its engine.

Other operations are in its parts (`history`, `pools`, `limits`, `sleep`, `sharing`, `inspection`). Parts are views: the
allocator holds all their state (see `parts`).

No thread waits for the engine's lock while it holds the interpreter lock. It only *tries* the engine's lock; if that
fails, it releases the interpreter lock and then waits. A request that hits the cache keeps the interpreter lock
throughout. As long as no thread can enter without that lock (see `interpreter_lock_suffices`), the request needs no
other lock. A request that calls the device acquires the engine's lock and releases the interpreter lock.

An interpreter without that lock acquires the engine's lock for every request. The critical section of the allocator
then guards the attributes below that are Python objects, unless they are set once, or are lists, dictionaries and sets
that are never replaced: those guard themselves. A thread leaves its critical sections when it waits, as it leaves the
interpreter lock.
"""

from libc.stdint cimport uint32_t

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.caching.annotations cimport Annotations
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._core.contract.types cimport address_t, bytes_t, stream_t, thread_t
from allotment._core.model.model cimport Block, Engine, Failure, Request
from allotment._core.records.history cimport gather_t

cdef enum Level:                # the purpose for which contexts are gathered
    NEVER                       # nothing
    PACED                       # nothing, but requests wait for a history file that is behind
    STATE                       # blocks, for snapshots
    ALLOC                       # and allocations in the history
    EVERYTHING                  # and frees, with stacks of their own

cdef class Allocator(AllocatorBase):
    cdef Engine* engine
    cdef int level                      # a Level
    cdef object recorder                # a function that returns stacks in place of Python's; None: none
    cdef gather_t gather                # the framework's; NULL: none
    cdef set recording                  # threads inside it
    cdef object rules                   # of the PyTorch version that the settings name
    cdef dict reserve_classes           # stream -> class of expandable_segments_reserve_by_class
    cdef Annotations profiler           # None: no profiler listens
    cdef int pointer_holders            # tables of C entry points that refer to the engine, which must outlive them
    cdef object calm                    # a Stream that never has work (see `ready_for`); None until needed
    # The address that `malloc` returned last, also as a Python int. A block that is allocated and freed repeatedly has
    # the same address each time, and creating the int costs as much as the allocation.
    cdef address_t returned_address
    cdef object returned
    cdef object sanitizer               # a Sanitizer, or None. With one, requests never take the fast path

    # State of `history`.
    cdef list trackers, annotations
    cdef Py_ssize_t most_annotations
    cdef HistoryFile file               # None: memory keeps the history
    cdef list ended_files               # kept because C code may still read them
    # State of `pools`.
    cdef set lent                       # ids of lent pools: see `lending`
    cdef list forgotten_pools           # (id, whether by its creator) of pools closed inside: see `Pools.close`
    # State of `limits`.
    cdef object handlers                # a Handlers; None until it has one
    cdef list callbacks                 # free-memory callbacks, to which the engine refers
    cdef list removed_callbacks         # callbacks that a thread may still be running
    # State of `sleep`.
    cdef dict kept                      # (first, second) of each paused pool -> its Contents; None if not kept
    cdef dict paused_for                # (first, second) of each pool paused for a tenant -> the tenant's name
    cdef set waking                     # threads that are copying contents back
    cdef object ring                    # the Ring that contents are copied through; None until needed
    cdef dict host_copies               # pool id -> Contents whose host memory stays for the next pause
    cdef object on_sleep                # called when memory has fallen asleep or wakes; None: nobody asks

    cdef object allocate(self, object size, object stream, thread_t thread, uint32_t tenant)
    cdef object allocate_read(self, bytes_t size, stream_t stream, thread_t thread, uint32_t tenant)
    cdef object ready_for(self, object size, object stream, uint32_t tenant)
    cdef object ready_without_waiting(self, object size, stream_t handle, object stream, uint32_t tenant)
    cdef int make_calm_stream(self) except -1
    cdef object allocate_after_miss(self, Request* request)
    cdef object allocate_locking(self, Request* request)
    cdef address_t try_once(self, Request* request) except? 0
    cdef address_t try_quietly(self, Request* request) except? 0
    # The rest of a request that failed: returns an address, or raises. C callers use it too
    cdef object allocate_after_failure(self, Request* request)
    cdef bytes_t checked_size(self, object given) except? 0
    cdef int raise_out_of_memory(self, object error) except -1
    # Callers of all functions hold the interpreter lock. Those named `locking` also take the engine's.
    cdef int free_from_stream(self, address_t address, stream_t stream) except -1
    cdef int free_locking(self, address_t address, uint32_t context, void* buffer) except -1
    cdef int finish_free_locking(self, Block* block, address_t address, uint32_t context) except -1

    # Returns what `record_history` may replace at any time, with a reference owned by the caller.
    cdef HistoryFile present_file(self)
    cdef object present_recorder(self)
    cdef list present_annotations(self)

    cdef uint32_t request_context(self) except? 0xFFFFFFFF
    cdef uint32_t stack_now(self) except? 0xFFFFFFFF     # the calling thread's context
    cdef uint32_t recorded_stack(self) except? 0xFFFFFFFF

    cdef int enter(self) except -1
    cdef void wait_outside(self) noexcept
    # Call these around the creation of Python objects inside the engine: a garbage collection there would run
    # finalizers, which are foreign code, under the lock. Pass the first function's result to the second.
    cdef bint enter_making_objects(self) except -1
    cdef void leave_making_objects(self, bint collects) noexcept
    cdef int leave(self, bint ok, const Failure* failure) except -1 nogil
    cdef object failed(self, const Failure* failure)
    # Logs that the cache was released for a request; does nothing if `on_out_of_memory` handlers run first.
    cdef int log_retry(self, const Request* request, bint served) except -1
    cdef bint has_handlers(self) except -1            # whether such handlers exist

    cdef int watch(self) except -1
    cdef object allocate_watched(self, Request* request)
    cdef int free_into_quarantine(self, address_t address, uint32_t context) except -1
    cdef int free_quarantined(self, list addresses) except -1
