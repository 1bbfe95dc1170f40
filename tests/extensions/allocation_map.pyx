"""The map of host memory, one step at a time. It records addresses that no memory has."""

from allotment._allocators.host_cache.allocation_map cimport (
    Allocation, find, forget, record, recycle, registry, uncache, withdraw)
from allotment._allocators.host_cache.system_memory cimport System
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.tools.lock cimport lock_give, lock_wait

cdef System nowhere
cdef address_t FIRST = <address_t> 1 << 60


cdef class Map:
    """A small number stands for the address of an allocation. A cached allocation may have left the map and still
    exist, so this class keeps the records that it found.
    """
    cdef dict on_lists      # number -> records on a free list, oldest first

    def __cinit__(self):
        self.on_lists = {}

    def record(self, int number, bytes_t size, bint is_plain):
        lock_wait(&registry.lock)
        ok = record(FIRST + number, size, &nowhere, is_plain)
        lock_give(&registry.lock)
        return ok

    def find(self, int number):
        """Return (size, number of places on lists, plain), or None."""
        cdef Allocation* found
        lock_wait(&registry.lock)
        found = find(FIRST + number)
        described = None if found == NULL else (found.size, found.times_cached, bool(found.is_plain))
        lock_give(&registry.lock)
        return described

    def cache(self, int number):
        """Put it on one more place of a list. pre: in the map"""
        lock_wait(&registry.lock)
        found = find(FIRST + number)
        found.times_cached += 1
        registry.cached_bytes += found.size
        self.on_lists.setdefault(number, []).append(<size_t> found)
        lock_give(&registry.lock)

    def uncache(self, int number):
        """Take it from the list on which it was put last. pre: on one"""
        lock_wait(&registry.lock)
        uncache(<Allocation*> <size_t> self.on_lists[number].pop())
        lock_give(&registry.lock)

    def withdraw(self, int number):
        """Remove a place. Return whether it was the last one, so that the memory is released. pre: on one"""
        cdef Allocation* allocation = <Allocation*> <size_t> self.on_lists[number].pop()
        lock_wait(&registry.lock)
        is_last = withdraw(allocation)
        if is_last:
            recycle(allocation)
        lock_give(&registry.lock)
        return bool(is_last)

    def forget(self, int number):
        cdef Allocation* found
        lock_wait(&registry.lock)
        found = find(FIRST + number)
        if found != NULL:
            forget(found)
        lock_give(&registry.lock)

    def totals(self):
        """Return the (recorded, cached) bytes of the whole process."""
        return registry.recorded_bytes, registry.cached_bytes
