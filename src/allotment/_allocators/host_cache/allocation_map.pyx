from libc.stdint cimport uint64_t

from allotment._allocators.host_cache.allocation_map cimport Allocation, find
from allotment._allocators.host_cache.system_memory cimport System
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.forks cimport SHORT_LOCK, ForkGuard, guard_forks
from allotment._core.tools.pointer_map cimport map_init, map_pop, map_put, map_reserve
from allotment._core.tools.slab cimport slab_give, slab_init, slab_reserve, slab_take

cdef ForkGuard fork_guard


cdef bint record(address_t address, bytes_t size, System* system, bint is_plain) noexcept nogil:
    cdef Allocation* allocation
    cdef uint64_t key = address + 1
    if key == 0 or not (map_reserve(&registry.map) and slab_reserve(&registry.records, 1)):
        return False
    allocation = find(address)
    if allocation != NULL:
        forget(allocation)
    allocation = <Allocation*> slab_take(&registry.records)
    allocation.address = address
    allocation.size = size
    allocation.system = system
    allocation.times_cached = 0
    allocation.is_mapped = True
    allocation.is_checked = False
    allocation.is_plain = is_plain
    map_put(&registry.map, key, allocation)
    if not is_plain:
        registry.recorded_bytes += size
    return True


cdef void forget(Allocation* allocation) noexcept nogil:
    if not allocation.is_mapped:
        return
    map_pop(&registry.map, allocation.address + 1)
    allocation.is_mapped = False
    if not allocation.is_plain:
        registry.recorded_bytes -= allocation.size
    recycle_if_unused(allocation)


cdef void uncache(Allocation* allocation) noexcept nogil:
    allocation.times_cached -= 1
    registry.cached_bytes -= allocation.size
    recycle_if_unused(allocation)


cdef bint withdraw(Allocation* allocation) noexcept nogil:
    forget(allocation)
    allocation.times_cached -= 1
    registry.cached_bytes -= allocation.size
    return allocation.times_cached == 0


cdef void recycle(Allocation* allocation) noexcept nogil:
    slab_give(&registry.records, allocation)


cdef void recycle_if_unused(Allocation* allocation) noexcept nogil:
    if allocation.times_cached == 0 and not allocation.is_mapped:
        recycle(allocation)


cdef int open_registry() except -1:
    slab_init(&registry.records, sizeof(Allocation))
    if not map_init(&registry.map):
        raise MemoryError("no memory for the allocation map")
    guard_forks(&fork_guard, SHORT_LOCK, &registry.lock)
    return 0


open_registry()
