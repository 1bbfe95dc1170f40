"""An engine held for Python: made, entered, left and given up; its limit, its settings and its figures.

The interpreter lock and the engine's lock are never waited for in a circle: code that holds the interpreter lock only
*tries* the engine's; if that fails it lets the interpreter go first. A request that hits the cache keeps the
interpreter lock throughout, and as long as no thread can come in without that (see `is_guarded_already`) needs no
other; one that has to ask the device takes the engine's and lets it go.
"""

from libc.stdint cimport uint32_t

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.caching.annotations cimport Annotations
from allotment._core.model.model cimport Engine, Failure, Request
from allotment._core.records.history cimport gather_t

cdef enum Level:                # contexts are gathered for
    NEVER                       # nothing
    PACED                       # nothing, but a history file is behind which requests wait
    STATE                       # blocks, as snapshots show them
    ALLOC                       # and entries of the history
    EVERYTHING                  # and frees in their own right

cdef class EngineAllocator(AllocatorBase):
    cdef Engine* engine
    cdef int level                      # a Level
    cdef object recorder                # gives contexts instead of Python's stack; None: there is none
    cdef gather_t gather                # the framework's; NULL: there is none
    cdef set recording                  # threads that are in it
    cdef list forgotten_pools           # (id, whether by its maker) given up from inside the engine: see close_pool
    cdef object rules                   # of the version that the settings name
    cdef dict reserve_classes           # stream -> class of expandable_segments_reserve_by_class
    cdef Annotations profiler           # None: none is told
    cdef int pointer_holders            # tables of C entry points that refer to the engine, which must outlive them

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
    cdef int close_forgotten_pools(self) except -1
    # If the cache was given back for it, unless steps of `on_out_of_memory` are asked first.
    cdef int log_retry(self, const Request* request, bint served) except -1
    cdef bint has_say(self) except -1            # whether there are such steps
    cdef list reserves_of(self, object settings, dict classes)
    cdef int apply_reserves(self, list reserves) except -1
    cdef int warn_of_plain_segments(self, object settings) except -1
