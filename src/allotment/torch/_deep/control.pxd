"""Points that change how allocators work: settings, limits, caching on and off, access of peers."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_control(allotment_points* table) noexcept
