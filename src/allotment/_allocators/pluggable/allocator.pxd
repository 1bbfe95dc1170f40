"""An allocator made of somebody else's functions: see plugged_memory.pxd."""

from allotment._allocators.pluggable.plugged_memory cimport PluggedMemory

cdef class PluggableAllocator(PluggedMemory):
    cdef dict fractions         # device -> what was set through us
    cdef dict pool_uses         # (device, pool id) -> times begun and not yet released

    cdef dict counters_of(self, object device)
