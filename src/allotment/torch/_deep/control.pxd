"""Framework interface: how allocators work: settings, limits, caching on and off, access of peers."""

from allotment.torch._deep.header cimport allotment_interface

cdef void fill_control(allotment_interface* table) noexcept
