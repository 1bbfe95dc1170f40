"""How an arena of dense placement grows: by how much, in which chunks, where, and from which free memory.

Decides what new memory a request costs (step 7 of `dense`), and has the arena carry it out.

    room     what may be obtained before free memory is put together: a hundredth of the most ever in use, more at first
    ahead    a little more than was asked for, while memory is not short
    pressed  more than a quarter of all that can be had is held: small chunks, nothing ahead, plans that save memory
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Request
from allotment._core.placement.dense.structures cimport Arena, Region
from allotment._core.records.stats cimport tally_now

cdef bint may_wait(const Arena* arena, const Request* request) noexcept nogil
cdef bytes_t left_to_get(const Arena* arena) noexcept nogil
cdef Region* grow_plainly(Arena* arena, Request* request, bytes_t left) noexcept nogil
cdef Region* grow(Arena* arena, Request* request, bint last) noexcept nogil


# How far an arena grows is measured by all memory of the engine, that of private pools included.

cdef inline bytes_t in_use(const Engine* engine) noexcept nogil:
    return <bytes_t> tally_now(&engine.stats.active_bytes)


cdef inline bytes_t held(const Engine* engine) noexcept nogil:
    return <bytes_t> tally_now(&engine.stats.reserved_bytes)
