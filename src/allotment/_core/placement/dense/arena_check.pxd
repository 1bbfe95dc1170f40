"""Are the tiles, views, chunks and indexes of an arena in order, and if not, which rule broke?

Everything that is kept twice is computed once more and compared. Costs a walk over everything. From the first visit on
the arena keeps, for the next ones, when its bytes were freed.
"""

from allotment._core.model.model cimport Totals
from allotment._core.placement.dense.structures cimport Arena

cdef int check_arena(Arena* arena, Totals* totals) except -1
