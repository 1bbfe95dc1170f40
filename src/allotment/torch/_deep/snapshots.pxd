"""The point `snapshot`: segments, history and annotations of a device, passed piece by piece."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_snapshots(allotment_points* table) noexcept
