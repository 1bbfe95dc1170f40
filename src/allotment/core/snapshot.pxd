from libc.stddef cimport size_t

from allotment.core.trace cimport TraceRecord
from allotment.core.walk cimport Arrangement

cdef list segment_dicts(const Arrangement* arrangement, int device)
cdef list trace_dicts(const TraceRecord* records, size_t count)
cdef str action_name(int action)
cdef int action_number(str name) except -2
