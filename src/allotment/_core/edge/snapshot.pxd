from libc.stddef cimport size_t

from allotment._core.edge.walk cimport Arrangement
from allotment._core.records.trace cimport TraceRecord

cdef list segment_dicts(const Arrangement* arrangement, int device)
cdef list trace_dicts(const TraceRecord* records, size_t count, object rules)
cdef str user_metadata(const TraceRecord* record, object rules)
cdef str internal_metadata(const TraceRecord* record, object rules)
