"""Looks up the block that contains an address, which may lie in the block's middle.

The start of a block takes one map lookup. Any other address is looked up by its range, and then by a walk over that
range's blocks. That is for checking a caller's argument, not for the hot path.
"""

from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Engine

ctypedef enum AddressLookup:
    IN_BLOCK            # inside a live block: sets `start` and `size` to the block's
    IN_UNUSED           # our memory, but not in use
    ELSEWHERE           # not this engine's memory

cdef AddressLookup find_address(Engine* engine, address_t address, address_t* start, bytes_t* size) noexcept nogil
