"""Checks that a pool's free lists, bins, lists and counts agree with its blocks. `invariants` calls it."""

from allotment._core.model.model cimport Engine, Pool
from allotment._core.records.stats cimport Totals

cdef int check_free_lists(Engine* engine, Pool* pool, Totals* totals) except -1
