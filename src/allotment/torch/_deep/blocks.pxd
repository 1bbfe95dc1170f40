"""Framework interface: single blocks: size, context, exact addresses, blocks of other processes."""

from allotment.torch._deep.header cimport allotment_interface

cdef void fill_blocks(allotment_interface* table) noexcept
