"""An allocator made of a user's functions: see plugged_memory.pxd."""

from allotment._allocators.pluggable.plugged_memory cimport PluggedMemory

cdef class PluggableAllocator(PluggedMemory):
    cdef dict fractions         # device -> the fraction set through this allocator
    cdef dict pool_uses         # (device, pool id) -> times begun and not yet released

    cdef dict counters_of(self, object device)
