"""A snapshot as a pickle whose history comes straight from the ring's records.

It loads as exactly what `snapshot` shows, but no dictionary is made for an entry on the way. Whatever can come again in
a history is written once and then named by its memo number: the words of the form by fixed numbers that take a byte,
what the program brought in (texts, stacks, pool ids) by the numbers behind those.
"""

from libc.stddef cimport size_t

from allotment._core.records.trace cimport TraceRecord

cdef int write_snapshot(object file, dict snapshot, const TraceRecord* records, size_t count, object rules) except -1
