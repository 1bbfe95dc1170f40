from allotment.core.trace cimport TraceRecord
from allotment.core.walk cimport Arrangement

cdef list segment_dicts(const Arrangement* arrangement, int device)
cdef dict trace_dict(const TraceRecord* record)
cdef str action_name(int action)
cdef int action_number(str name) except -2
