"""The table of pinned_points.h, which explains it, over a `PinnedAllocator` of either mode.

In the mode "tight" an engine serves the requests, through its own entry points. A block that was requested and used by
a stream during a capture is never freed to the engine: the graph may copy from or to it at any time (`captured`).
"""

from libc.stddef cimport size_t
from libc.stdint cimport int64_t, uint32_t, uint64_t

from allotment._allocators.caching.entry_points cimport EntryPoints
from allotment._allocators.pinned.blocks cimport pinned_listener_t, pinned_visit_t
from allotment._core.contract.types cimport bytes_t, stream_t
from allotment._core.model.model cimport Engine, drop_t, filter_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap

cdef extern from "pinned_points.h":
    enum:
        ALLOTMENT_PINNED_VERSION
        ALLOTMENT_PINNED_CLASSES
        ALLOTMENT_PINNED_FAILED
        ALLOTMENT_PINNED_OUT_OF_MEMORY
        ALLOTMENT_PINNED_NOT_OURS
    ctypedef struct allotment_pinned_count:
        int64_t current, peak, allocated, freed
    ctypedef struct allotment_pinned_time:
        int64_t total, longest, shortest, count
    ctypedef struct allotment_pinned_stats:
        allotment_pinned_count allocations, allocated_bytes, active_requests, active_bytes
        allotment_pinned_time obtaining, returning
        int64_t* classes
    ctypedef struct allotment_pinned_settings:
        int use_background_threads, use_host_register, catch_all
        uint64_t max_round_threshold, max_cached_size, register_threads
    ctypedef struct allotment_pinned_points:
        size_t size
        uint32_t version
        int device
        void* context
        uint64_t (*allocate)(void* context, size_t size) noexcept nogil
        int (*free)(void* context, uint64_t address) noexcept nogil
        int (*is_lent)(void* context, uint64_t address) noexcept nogil
        int (*record_stream)(void* context, uint64_t address, uint64_t stream) noexcept nogil
        int (*empty_cache)(void* context) noexcept nogil
        int (*begin_allocate_to_pool)(void* context, uint64_t first, uint64_t second, filter_t accepts, drop_t drop,
                                      void* self) noexcept nogil
        int (*end_allocate_to_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
        int (*release_pool)(void* context, uint64_t first, uint64_t second) noexcept nogil
        int (*stats)(void* context, allotment_pinned_stats* out) noexcept nogil
        int (*reset)(void* context, int only_peaks) noexcept nogil
        int (*visit)(void* context, pinned_visit_t visit, void* self) noexcept nogil
        void (*listen)(void* context, pinned_listener_t listener, void* self) noexcept nogil
        int (*configure)(void* context, const allotment_pinned_settings* settings) noexcept nogil
        void (*follow_current_stream)(void* context, uint64_t (*current)(int) noexcept nogil) noexcept nogil
        size_t (*last_error)(void* context, char* text, size_t capacity, int* failure) noexcept nogil

cdef struct Context:
    allotment_pinned_points points
    void* allocator                 # the PinnedAllocator, which is never released
    void* blocks                    # its PinnedBlocks; NULL in the mode "tight"
    EntryPoints* tight              # of its engine; NULL in the mode "torch"
    Engine* engine                  # likewise
    bytes_t* most_needed            # of the allocator, likewise
    stream_t (*current)(int device) noexcept nogil      # a framework's current stream, or NULL
    Lock lock                       # guards the fields below
    ForkGuard fork_guard
    int routes                      # number of pools that are routed to, in the mode "tight"
    PointerMap captured             # blocks requested during a capture: address -> whether a stream used it
    pinned_listener_t listener      # in the mode "tight", whose records have more fields
    void* listening
