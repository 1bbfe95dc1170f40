"""Points about the history: what is recorded, its contexts, and users' annotations."""

from libc.stdint cimport uint32_t

from allotment._core.records.tenants cimport FOREIGN_STACK, stack_of
from allotment._core.records.trace cimport TraceRecord
from allotment.torch._deep.header cimport allotment_points, allotment_record

cdef void tell_record(allotment_record* told, const TraceRecord* record, int device) noexcept nogil

cdef void fill_history(allotment_points* table) noexcept


cdef inline uint32_t shown_context(uint32_t context) noexcept nogil:
    """The number of a framework's context; 0 if it is not the framework's."""
    return stack_of(context) if stack_of(context) >= FOREIGN_STACK else 0
