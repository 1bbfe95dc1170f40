"""Points that give figures of a device: gauges, the largest free block, statistics, what is mapped."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_figures(allotment_points* table) noexcept
