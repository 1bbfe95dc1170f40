"""`allocator.sharing`: blocks that other processes can open: what `_sharing` asks of it, and what users do.

Which process has what open is known to `_sharing.owner` alone; here it is a number of leases a block.
"""

from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.parts cimport BasicSharing
from allotment._core.contract.types cimport address_t

cdef class Sharing(BasicSharing):
    cdef Allocator allocator

    cdef int require_sharing(self, str operation) except -1
    cdef object shared_block(self, address_t address, list kept)
