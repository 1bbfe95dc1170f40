"""Allocated pointers as the segments that memory tools read."""

from allotment._allocators.pluggable.ledger cimport Ledger

cdef list segments_of(Ledger* ledger)       # by device and address, each pointer a segment of one block
