"""Tries requests on a copy of all that an allocator knows: see `_core/edge/rehearsal`."""

from allotment._allocators.caching.allocator cimport Allocator

cdef object plan_requests(Allocator allocator, object requests)       # a Plan
