"""Checks that the tiles, views, chunks and indexes of an arena are consistent; names the violated invariant.

It recomputes everything that is stored redundantly, and compares. It costs a walk over everything. From the first check
on, the arena records for later checks when its bytes were freed.
"""

from allotment._core.model.model cimport Totals
from allotment._core.placement.dense.structures cimport Arena

cdef int check_arena(Arena* arena, Totals* totals) except -1
