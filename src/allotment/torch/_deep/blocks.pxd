"""Points about single blocks: size, context, allocation at an exact address, and blocks of other processes."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_blocks(allotment_points* table) noexcept
