"""`allocator.sharing`: blocks that other processes can open, for users and for `_sharing`.

Only `_sharing.owner` knows which process has what open; this file knows a number of leases for each block.
"""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport BasicSharing
from allotment._core.contract.types cimport address_t

cdef class Sharing(BasicSharing):
    cdef Allocator allocator

    cdef int require_sharing(self, str operation) except -1
    cdef object shared_block(self, address_t address, list kept)
