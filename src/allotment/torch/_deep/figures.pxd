"""Points that return figures of a device: gauges, the largest free block, statistics, mapped memory."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_figures(allotment_points* table) noexcept
