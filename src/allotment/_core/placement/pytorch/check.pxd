"""Do shelves, bins, lists and counts of a pool say what its blocks are? See `invariants`, which asks."""

from allotment._core.model.model cimport Engine, Pool
from allotment._core.records.stats cimport Totals

cdef int check_shelves(Engine* engine, Pool* pool, Totals* totals) except -1
