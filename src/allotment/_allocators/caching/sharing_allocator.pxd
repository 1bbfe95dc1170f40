"""An engine whose blocks other processes can open: what `_sharing` asks of it, and what users do.

Which process has what open is known to `_sharing.owner` alone; here it is a number of leases a block.
"""

from allotment._allocators.caching.pausing_allocator cimport PausingAllocator
from allotment._core.contract.types cimport address_t

cdef class SharingAllocator(PausingAllocator):
    cdef int require_sharing(self, str operation) except -1
    cdef object shared_block(self, address_t address, bint keep)
