"""The block that holds an address, also one in the block's middle.

The start of a block is one look into the map. Anything else is found by its range, and there by a walk over the blocks:
for checking what a caller passed, not for the hot path.
"""

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Engine

ctypedef enum Whereabouts:
    IN_BLOCK            # of a live block: `start` and `size` are its
    IN_UNUSED           # memory of ours that is not in use
    ELSEWHERE           # not memory of this engine

cdef Whereabouts find_address(Engine* engine, address_t address, address_t* start, bytes_t* size) noexcept nogil
