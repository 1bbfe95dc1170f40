"""Operations of an allocator that belong together, as small objects: `allocator.limits`, `allocator.sharing`, ...

A part is a view, made at each access, that holds its allocator. The allocator holds all state. So the two never form a
reference cycle, and an allocator ends as soon as its last reference is dropped.

The parts here are those that several kinds of allocators have. A kind that needs more derives its own part; a kind that
cannot do something does not have that part.
"""

from allotment._allocators.base cimport AllocatorBase

cdef class Part:
    cdef AllocatorBase whole

cdef class BasicLimits(Part):
    pass

cdef class ObservedLimits(BasicLimits):
    pass

cdef class BasicSharing(Part):
    pass

cdef class BasicInspection(Part):
    pass
