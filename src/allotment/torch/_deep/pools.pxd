"""Framework interface: creating, releasing and emptying pools, their flags and states."""

from allotment.torch._deep.header cimport allotment_interface

cdef void fill_pools(allotment_interface* table) noexcept
