"""`allocator.inspection`: figures, checks and findings, for tools and tests."""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport BasicInspection

cdef class Inspection(BasicInspection):
    cdef Allocator allocator
