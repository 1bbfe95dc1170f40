"""Writes a snapshot as a pickle, with the history straight from the ring's records.

It loads as exactly what `snapshot` returns, but without a dictionary per entry on the way. Repeated values are written
once and then referred to by memo number: the words of the format by fixed one-byte numbers, the program's own values
(texts, stacks, pool ids) by the numbers after those.
"""

from libc.stddef cimport size_t

from allotment._core.records.trace cimport TraceRecord

cdef int write_snapshot(object file, dict snapshot, const TraceRecord* records, size_t count, object rules) except -1
