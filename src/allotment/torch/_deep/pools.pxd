"""Points about pools: creating, releasing and emptying them, their flags, their states."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_pools(allotment_points* table) noexcept
