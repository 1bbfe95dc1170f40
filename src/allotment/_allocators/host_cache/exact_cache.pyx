from libc.stddef cimport size_t
from libc.stdlib cimport calloc, free

from allotment._allocators.host_cache.allocation_map cimport (
    ALREADY_FREE, DONE, LEAVES, NOT_ALLOCATED, OUT_OF_MEMORY, Allocation, Leaving, Outcome, find, forget, record,
    recycle, registry, send_back, uncache, withdraw)
from allotment._allocators.host_cache.exact_cache cimport Cache, Counters, FreeList, Place
from allotment._allocators.host_cache.system_memory cimport System, system_allocate, system_free
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.arguments cimport SIZE_BITS
from allotment._core.tools.lock cimport lock_give, lock_wait
from allotment._core.tools.pointer_map cimport map_clear, map_get, map_init, map_put, map_reserve
from allotment._core.tools.slab cimport Slab, slab_give, slab_init, slab_reserve, slab_take

# Of all caches; guarded by the registry's lock.
cdef Slab places
cdef Slab lists
slab_init(&places, sizeof(Place))
slab_init(&lists, sizeof(FreeList))


# --- a cache and its lists ---------------------------------------------------------------------------------

cdef Cache* cache_create(System* system, bint is_checked) noexcept nogil:
    cdef Cache* cache = <Cache*> calloc(1, sizeof(Cache))
    if cache == NULL or not map_init(&cache.lists):
        free(cache)
        return NULL
    cache.system = system
    cache.is_checked = is_checked
    lock_wait(&registry.lock)
    registry.checkers += is_checked
    lock_give(&registry.lock)
    return cache


cdef void cache_destroy(Cache* cache) noexcept nogil:
    cache_release(cache)
    lock_wait(&registry.lock)
    registry.checkers -= cache.is_checked
    lock_give(&registry.lock)
    map_clear(&cache.lists)
    free(cache)


cdef inline FreeList* list_of(Cache* cache, bytes_t size) noexcept nogil:
    return <FreeList*> map_get(&cache.lists, size + 1)


cdef FreeList* list_made_for(Cache* cache, bytes_t size) noexcept nogil:
    """Return NULL if there is no memory."""
    cdef FreeList* wanted = list_of(cache, size)
    if wanted == NULL and map_reserve(&cache.lists) and slab_reserve(&lists, 1):
        wanted = <FreeList*> slab_take(&lists)
        wanted.size = size
        wanted.top = NULL
        map_put(&cache.lists, size + 1, wanted)
    return wanted


# --- allocating --------------------------------------------------------------------------------------------

cdef Outcome cache_allocate(Cache* cache, bytes_t size, address_t* address) noexcept nogil:
    cdef bint is_hit
    if (size >> SIZE_BITS) != 0:
        return OUT_OF_MEMORY
    lock_wait(&registry.lock)
    is_hit = take_cached(cache, size, address)
    lock_give(&registry.lock)
    return DONE if is_hit else allocate_new(cache, size, address)


cdef bint take_cached(Cache* cache, bytes_t size, address_t* address) noexcept nogil:
    cdef FreeList* ready = list_of(cache, size)
    cdef Place* place
    if ready == NULL or ready.top == NULL:
        cache.counters.misses += 1
        return False
    place = ready.top
    ready.top = place.below
    address[0] = place.allocation.address
    uncache(place.allocation)
    slab_give(&places, place)
    cache.counters.hits += 1
    cache.counters.cached_blocks -= 1
    cache.counters.cached_bytes -= size
    return True


cdef Outcome allocate_new(Cache* cache, bytes_t size, address_t* address) noexcept nogil:
    if ask_system(cache, size, address):
        return DONE
    lock_wait(&registry.lock)
    cache.counters.retries += 1
    lock_give(&registry.lock)
    cache_release(cache)
    return DONE if ask_system(cache, size, address) else OUT_OF_MEMORY


cdef bint ask_system(Cache* cache, bytes_t size, address_t* address) noexcept nogil:
    cdef bint is_recorded
    if not system_allocate(cache.system, size, address):
        return False
    lock_wait(&registry.lock)
    is_recorded = record(address[0], size, cache.system, False)
    lock_give(&registry.lock)
    if not is_recorded:
        system_free(cache.system, address[0], size)
    return is_recorded


# --- freeing -----------------------------------------------------------------------------------------------

cdef Outcome cache_free(Cache* cache, address_t address) noexcept nogil:
    cdef Leaving leaving
    cdef Outcome outcome
    lock_wait(&registry.lock)
    outcome = keep(cache, address, &leaving)
    lock_give(&registry.lock)
    if outcome == LEAVES:
        send_back(&leaving)
        return DONE
    return outcome


cdef Outcome keep(Cache* cache, address_t address, Leaving* leaving) noexcept nogil:
    cdef Allocation* allocation = find(address)
    cdef FreeList* its_list
    cdef Place* place
    if allocation == NULL:
        if address == 0:
            return DONE
        if cache.is_checked:
            return NOT_ALLOCATED
        return release_memory(cache, cache.system, address, 0, leaving)
    if allocation.times_cached != 0:
        if address == 0:
            return DONE
        if cache.is_checked:
            return ALREADY_FREE
    if allocation.is_plain:
        return release_allocation(cache, allocation, leaving)
    its_list = list_made_for(cache, allocation.size)
    if its_list == NULL or not slab_reserve(&places, 1):
        return DONE if allocation.times_cached != 0 else release_allocation(cache, allocation, leaving)
    place = <Place*> slab_take(&places)
    place.allocation = allocation
    place.below = its_list.top
    its_list.top = place
    if allocation.times_cached == 0:
        allocation.is_checked = cache.is_checked
    allocation.times_cached += 1
    registry.cached_bytes += allocation.size
    cache.counters.cached_frees += 1
    cache.counters.cached_blocks += 1
    cache.counters.cached_bytes += allocation.size
    return DONE


cdef Outcome release_allocation(Cache* cache, Allocation* allocation, Leaving* leaving) noexcept nogil:
    release_memory(cache, allocation.system, allocation.address, allocation.size, leaving)
    forget(allocation)
    return LEAVES


cdef Outcome release_memory(
    Cache* cache, System* system, address_t address, bytes_t size, Leaving* leaving
) noexcept nogil:
    cache.counters.system_frees += 1
    leaving.system = system
    leaving.address = address
    leaving.size = size
    return LEAVES


# --- releasing ---------------------------------------------------------------------------------------------

cdef void cache_release(Cache* cache) noexcept nogil:
    cdef Place* leaving
    cdef Place* place
    cdef Allocation* allocation
    lock_wait(&registry.lock)
    leaving = withdraw_all(cache)
    lock_give(&registry.lock)

    place = leaving
    while place != NULL:
        allocation = place.allocation
        system_free(allocation.system, allocation.address, allocation.size)
        place = place.below

    lock_wait(&registry.lock)
    while leaving != NULL:
        place = leaving
        leaving = place.below
        recycle(place.allocation)
        slab_give(&places, place)
    lock_give(&registry.lock)


cdef Place* withdraw_all(Cache* cache) noexcept nogil:
    """Empty the lists; return what must return to its system, one place for each piece of memory."""
    cdef Place* leaving = NULL
    cdef Place* place
    cdef FreeList* full
    cdef size_t i
    for i in range(cache.lists.mask + 1):
        if cache.lists.slots[i].key == 0:
            continue
        full = <FreeList*> cache.lists.slots[i].value
        while full.top != NULL:
            place = full.top
            full.top = place.below
            if withdraw(place.allocation):
                place.below = leaving
                leaving = place
            else:
                slab_give(&places, place)
        slab_give(&lists, full)
        cache.lists.slots[i].key = 0
    cache.lists.count = 0
    cache.counters.cached_blocks = 0
    cache.counters.cached_bytes = 0
    return leaving


# --- checking ------------------------------------------------------------------------------------------------

cdef Counters cache_counters(Cache* cache) noexcept nogil:
    cdef Counters counters
    lock_wait(&registry.lock)
    counters = cache.counters
    lock_give(&registry.lock)
    return counters


cdef const char* cache_broken_rule(Cache* cache) noexcept nogil:
    cdef const char* rule
    lock_wait(&registry.lock)
    rule = broken_rule(cache)
    lock_give(&registry.lock)
    return rule


cdef const char* broken_rule(Cache* cache) noexcept nogil:
    cdef bytes_t cached_bytes = 0
    cdef size_t cached_blocks = 0
    cdef FreeList* kept
    cdef Place* place
    cdef size_t i
    for i in range(cache.lists.mask + 1):
        if cache.lists.slots[i].key == 0:
            continue
        kept = <FreeList*> cache.lists.slots[i].value
        if cache.lists.slots[i].key != kept.size + 1:
            return "a list is found under its size"
        place = kept.top
        while place != NULL:
            if place.allocation.size != kept.size:
                return "a list holds memory of its size"
            if place.allocation.times_cached == 0:
                return "memory on a list is cached"
            if place.allocation.is_mapped and find(place.allocation.address) != place.allocation:
                return "recorded memory is found under its address"
            cached_bytes += kept.size
            cached_blocks += 1
            place = place.below
    if cached_bytes != cache.counters.cached_bytes or cached_blocks != cache.counters.cached_blocks:
        return "the counters agree with the lists"
    if cached_bytes > registry.cached_bytes:
        return "the process's total covers each cache"
    return NULL
