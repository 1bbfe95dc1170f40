"""How an arena of dense placement grows: by how much, in which chunks, at which addresses, and from which free memory.

It decides what new memory a request costs (step 7 of `dense`), and makes the arena carry that out.

    room     what may be allocated before free memory is stitched: a hundredth of peak use; more at first, and in small
             processes up to a thirty-second
    ahead    a little more than was requested, while memory is not short
    pressed  more than a quarter of all available memory is held: small chunks, nothing ahead, plans that save memory
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Request
from allotment._core.placement.dense.structures cimport Arena, Region
from allotment._core.records.stats cimport tally_now

cdef bint may_wait(const Arena* arena, const Request* request) noexcept nogil
cdef bytes_t left_to_get(const Arena* arena) noexcept nogil
cdef Region* grow_plainly(Arena* arena, Request* request, bytes_t left) noexcept nogil
cdef Region* grow(Arena* arena, Request* request, bint last) noexcept nogil


# An arena's growth is measured against all memory of the engine, including private pools.

cdef inline bytes_t in_use(const Engine* engine) noexcept nogil:
    return <bytes_t> tally_now(&engine.stats.active_bytes)


cdef inline void note_peak(Engine* engine) noexcept nogil:
    cdef Arena* arena = <Arena*> engine.defaults.large.arena
    if arena != NULL and in_use(engine) > arena.peak:
        arena.peak = in_use(engine)


cdef inline bytes_t held(const Engine* engine) noexcept nogil:
    return <bytes_t> tally_now(&engine.stats.reserved_bytes)
