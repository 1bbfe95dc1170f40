"""Free lists of exact sizes: what one caching allocator keeps.

A program that repeats itself asks for the same sizes again and again. So memory that is freed is kept under
its exact size, last in first out, and handed to the next request of that very size, warm in the processor's
cache and with its pages already there. Nothing is rounded, split or merged; what is kept goes back to the
system when the system has no more to give, when asked, or when the allocator is destroyed.

    request of n bytes ── list of n has memory ──────────────> the last freed
                       └─ no ─> system ── it has none ──> release all that is kept, ask once more
    free ── in the allocation map ──> list of its recorded size, of the allocator it is freed through
         └─ unknown ──> system (in checked mode: refused)

The lists hold places, not allocations: memory that is freed twice lies there twice and is handed out twice,
unless the cache is checked. It still goes back to its system only once (see `Allocation`).

Cost: O(1) for each operation, except release, which is O(what is kept).
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.host_cache.allocation_map cimport Allocation, Leaving, Outcome
from allotment._allocators.host_cache.system_memory cimport System
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.pointer_map cimport PointerMap

cdef struct Place:
    Allocation* allocation
    Place* below

cdef struct FreeList:
    bytes_t size
    Place* top              # the most recently freed

cdef struct Counters:
    uint64_t hits
    uint64_t misses
    uint64_t retries        # the system had no memory and was asked again
    uint64_t cached_frees
    uint64_t system_frees   # frees that did not stay here
    uint64_t cached_blocks  # places on the lists
    bytes_t cached_bytes

cdef struct Cache:
    System* system
    bint is_checked
    PointerMap lists        # size + 1 -> FreeList
    Counters counters


# NULL: no memory. `system` must live forever.
cdef Cache* cache_create(System* system, bint is_checked) noexcept nogil

# pre: it is not in use any more. Releases what it keeps.
cdef void cache_destroy(Cache* cache) noexcept nogil

# These take the lock themselves, waiting for it if need be; pre: the calling thread does not hold it.
cdef Outcome cache_allocate(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome cache_free(Cache* cache, address_t address) noexcept nogil
cdef void cache_release(Cache* cache) noexcept nogil
cdef Counters cache_counters(Cache* cache) noexcept nogil

# The rule that is broken, or NULL.
cdef const char* cache_broken_rule(Cache* cache) noexcept nogil

# The halves of the first two, for callers that take the lock in a way of their own.
# pre: the size has at most SIZE_BITS bits
# take_cached: whether a list had memory. allocate_new: what follows if not, without the lock.
# keep: LEAVES asks for send_back(leaving), without the lock.
cdef bint take_cached(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome allocate_new(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome keep(Cache* cache, address_t address, Leaving* leaving) noexcept nogil
