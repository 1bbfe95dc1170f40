"""Free lists of exact sizes: what one caching allocator keeps.

A program that repeats itself requests the same sizes again and again. So the cache stores freed memory under its exact
size, last in first out, and returns it for the next request of that very size, warm in the processor's cache and with
its pages already mapped. It rounds, splits and merges nothing. Cached memory returns to the system when the system has
no more memory, on request, or when the allocator is destroyed.

    request of n bytes ── list of n has memory ──────────────> the last freed
                       └─ no ─> system ── it has none ──> release all that is kept, ask once more
    free ── in the allocation map ──> list of its recorded size, of the allocator it is freed through
         └─ unknown ──> system (in checked mode: refused)

The lists hold places, not allocations: memory that is freed twice has two places and is allocated twice, unless the
cache is checked. It still returns to its system only once (see `Allocation`).

Cost: O(1) for each operation; a release is linear in what is cached.
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
    uint64_t system_frees   # frees that were not cached here
    uint64_t cached_blocks  # places on the lists
    bytes_t cached_bytes

cdef struct Cache:
    System* system
    bint is_checked
    PointerMap lists        # size + 1 -> FreeList
    Counters counters


# NULL: no memory. `system` must live for ever.
cdef Cache* cache_create(System* system, bint is_checked) noexcept nogil

# pre: it is no longer in use. Releases what it caches.
cdef void cache_destroy(Cache* cache) noexcept nogil

# These acquire the lock themselves, waiting if needed; pre: the calling thread does not hold it.
cdef Outcome cache_allocate(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome cache_free(Cache* cache, address_t address) noexcept nogil
cdef void cache_release(Cache* cache) noexcept nogil
cdef Counters cache_counters(Cache* cache) noexcept nogil

# Returns the name of a violated invariant, or NULL.
cdef const char* cache_broken_rule(Cache* cache) noexcept nogil

# The halves of the first two, for callers that acquire the lock in their own way. pre: the size has at most SIZE_BITS
# bits. take_cached: whether a list had memory. allocate_new: what follows if not, without the lock. keep: after LEAVES,
# call send_back(leaving) without the lock.
cdef bint take_cached(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome allocate_new(Cache* cache, bytes_t size, address_t* address) noexcept nogil
cdef Outcome keep(Cache* cache, address_t address, Leaving* leaving) noexcept nogil
