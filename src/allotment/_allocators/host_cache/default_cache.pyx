from allotment._allocators.host_cache.allocation_map cimport (
    ALREADY_FREE, DONE, OUT_OF_MEMORY, Allocation, Leaving, Outcome, find, forget, record, registry, send_back)
from allotment._allocators.host_cache.exact_cache cimport Cache, cache_allocate, cache_free
from allotment._allocators.host_cache.system_memory cimport aligned_memory, system_allocate
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.lock cimport lock_give, lock_wait

cdef extern from *:
    """
    #if defined(_MSC_VER)
    static __declspec(thread) void* allotment_installed_cache;
    #else
    static __thread void* allotment_installed_cache;
    #endif
    """
    Cache* installed "allotment_installed_cache"


cdef void install_cache(Cache* cache) noexcept nogil:
    global installed
    installed = cache


cdef Outcome default_allocate(bytes_t size, address_t* address) noexcept nogil:
    if installed != NULL:
        return cache_allocate(installed, size, address)
    return plain_allocate(size, address)


cdef Outcome default_free(address_t address) noexcept nogil:
    if installed != NULL:
        return cache_free(installed, address)
    return plain_free(address)


cdef Outcome plain_allocate(bytes_t size, address_t* address) noexcept nogil:
    if not system_allocate(&aligned_memory, size, address):
        return OUT_OF_MEMORY
    lock_wait(&registry.lock)
    if registry.checkers != 0 and size != 0:
        record(address[0], size, &aligned_memory, True)
    lock_give(&registry.lock)
    return DONE


cdef Outcome plain_free(address_t address) noexcept nogil:
    cdef Leaving leaving = Leaving(&aligned_memory, address, 0)
    cdef Allocation* allocation
    lock_wait(&registry.lock)
    allocation = find(address)
    if allocation != NULL:
        if allocation.times_cached != 0 and address != 0:
            lock_give(&registry.lock)
            return ALREADY_FREE
        leaving.system = allocation.system
        leaving.size = allocation.size
        forget(allocation)
    lock_give(&registry.lock)
    send_back(&leaving)
    return DONE


cdef Outcome record_free(address_t address) noexcept nogil:
    cdef Outcome outcome = DONE
    cdef Allocation* allocation
    lock_wait(&registry.lock)
    allocation = find(address)
    if allocation != NULL:
        if allocation.times_cached != 0 and allocation.is_checked and address != 0:
            outcome = ALREADY_FREE
        else:
            forget(allocation)
    lock_give(&registry.lock)
    return outcome
