"""Checks that the tiles, views, chunks and indexes of an arena are consistent, and names the rule that is broken.

Computes everything that is stored redundantly once more and compares. Costs a walk over everything. From the first
check on, the arena records for later ones when its bytes were freed.
"""

from allotment._core.model.model cimport Totals
from allotment._core.placement.dense.structures cimport Arena

cdef int check_arena(Arena* arena, Totals* totals) except -1
