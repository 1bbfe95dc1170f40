"""The point `snapshot`: arrangement, history and notes of a device, told piece by piece."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_snapshots(allotment_points* table) noexcept
