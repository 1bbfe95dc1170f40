"""Points about single blocks: size, context, one at a wished address, and those of other processes."""

from allotment.torch._deep.header cimport allotment_points

cdef void fill_blocks(allotment_points* table) noexcept
