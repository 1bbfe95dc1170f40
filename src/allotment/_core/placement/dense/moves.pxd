"""How the history shows memory that has several addresses: at only one of them at a time.

Memory in use appears at the address where it is used, free memory at its home. So bytes that are allocated through a
view other than their home move there, and move back when they are freed: `segment_unmap` of one place, `segment_map` of
the other. At every entry of the history the mapped memory then equals the reserved memory, each byte once, as in a
snapshot.
"""

from libc.stdint cimport uint32_t

from allotment._core.placement.dense.structures cimport Arena, Tile, View

cdef void report_moves(Arena* arena, const Tile* tile, bint home, uint32_t context) noexcept nogil
cdef void report_new_home(Arena* arena, const View* old, const View* new) noexcept nogil
