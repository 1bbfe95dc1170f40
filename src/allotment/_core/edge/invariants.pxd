"""Checks that blocks, ranges, indexes, maps and counters agree; names the violated invariant.

It recomputes, from the blocks themselves, everything that is stored redundantly for speed, and compares. For tests and
for `Inspection.check_invariants`; costs a walk over everything.
"""

from allotment._core.model.model cimport Engine

cdef int check_engine(Engine* engine) except -1
