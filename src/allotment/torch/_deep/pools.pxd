"""Points about pools: made and let go, emptied, their flags, their states."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_pools(allotment_points* table) noexcept
