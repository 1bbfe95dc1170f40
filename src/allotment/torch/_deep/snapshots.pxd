"""Framework interface: the snapshot: segments, history and annotations of a device, passed piece by piece."""

from allotment.torch._deep.header cimport allotment_interface

cdef void fill_snapshots(allotment_interface* table) noexcept
