"""Pinned memory for users, in one of two modes over one source, `memory`:

    torch     `blocks`: PyTorch's decisions
    tight     an engine on pinned memory, which splits and merges: no rounding to powers of two

A request names no stream: who asks is the host. To the engine that is a stream of its own, which nothing runs on, so
that each real one, the default stream too, counts as another user.
"""

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.pinned.blocks cimport PinnedBlocks
from allotment._allocators.pinned.memory cimport PinnedMemory
from allotment._core.contract.types cimport address_t, bytes_t, stream_t

cdef inline stream_t host_stream() noexcept nogil:
    """The host as a stream: a number that no stream of a device has."""
    return <stream_t> 0x7FFFFFFFFFFFFF00


cdef class PinnedAllocator(AllocatorBase):
    cdef PinnedMemory memory
    cdef PinnedBlocks blocks        # None in the mode "tight"
    cdef Allocator tight            # None in the mode "torch"

    cdef address_t allocate(self, object size) except? 0
    cdef address_t serve_block(self, bytes_t size) except 0
    cdef int free_block(self, address_t address, object streams) except -1
    cdef int release(self, address_t address, object streams) except -1
    cdef int use_tight(self, address_t address, object stream) except -1
