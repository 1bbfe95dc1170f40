"""Framework interface: statistics, the largest free block, mapped memory."""

from allotment.torch._deep.header cimport allotment_interface

cdef void fill_statistics(allotment_interface* table) noexcept
