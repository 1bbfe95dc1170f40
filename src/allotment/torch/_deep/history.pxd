"""Framework interface: the history: what is recorded, its contexts, and users' annotations."""

from libc.stdint cimport uint32_t

from allotment._core.records.tenants cimport FOREIGN_STACK, stack_of
from allotment._core.records.trace cimport TraceRecord
from allotment.torch._deep.header cimport allotment_interface, allotment_record

cdef void fill_record(allotment_record* out, const TraceRecord* record, int device) noexcept nogil

cdef void fill_history(allotment_interface* table) noexcept


cdef inline uint32_t shown_context(uint32_t context) noexcept nogil:
    """Return the number of PyTorch's context; 0 for a stack that we recorded ourselves."""
    return stack_of(context) if stack_of(context) >= FOREIGN_STACK else 0
