"""Writes a snapshot as a pickle, with the history straight from the ring's records.

Loading it gives exactly what `snapshot` returns, but writing it makes no dictionary per entry. It writes each repeated
value once and then refers to it by memo number: to the words of the format by fixed one-byte numbers, to the program's
own values (texts, stacks, pool ids) by the numbers after those.
"""

from libc.stddef cimport size_t

from allotment._core.records.trace cimport TraceRecord

cdef int write_snapshot(object file, dict snapshot, const TraceRecord* records, size_t count, object rules) except -1
