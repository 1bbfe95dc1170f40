"""How the history shows memory that has several addresses: at one of them at a time.

What is in use is where it is used, what is free is where it is at home. So bytes that are handed out through another
view than their home move there, and back when they are free: `segment_unmap` of one place, `segment_map` of the other.
At every entry of the history what is mapped is then what is reserved, each byte once, as in a snapshot.
"""

from libc.stdint cimport uint32_t

from allotment._core.placement.dense.structures cimport Arena, Tile, View

cdef void report_moves(Arena* arena, const Tile* tile, bint home, uint32_t context) noexcept nogil
cdef void report_new_home(Arena* arena, const View* old, const View* new) noexcept nogil
