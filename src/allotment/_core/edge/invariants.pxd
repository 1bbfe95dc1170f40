"""Checks that blocks, ranges, indexes, maps and counters agree, and names the invariant that is broken.

Everything that is stored redundantly for speed is computed once more from the blocks themselves and compared. For tests
and for `Inspection.check_invariants`; costs a walk over everything.
"""

from allotment._core.model.model cimport Engine

cdef int check_engine(Engine* engine) except -1
