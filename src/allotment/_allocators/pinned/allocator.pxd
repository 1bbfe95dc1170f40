"""Pinned memory for users, in one of two modes over one source, `memory`:

    torch     `blocks`: PyTorch's decisions
    tight     an engine on pinned memory, which splits and merges: no rounding to powers of two

The mode "tight" allocates a separate segment of whole pages for each request above 1 MiB that no free memory serves.
Before it holds 1/128 more than was ever needed at once, it waits for copies in progress and releases wholly free
segments. Free memory beside blocks in use stays.

A request names no stream: it is for the host. The engine treats the host as a separate stream on which nothing runs. So
every real stream, including the default stream, counts as another user.
"""

from allotment._allocators.base cimport AllocatorBase
from allotment._allocators.caching.allocator cimport Allocator
from allotment._allocators.pinned.blocks cimport PinnedBlocks
from allotment._allocators.pinned.memory cimport PinnedMemory
from allotment._core.contract.types cimport address_t, bytes_t
from allotment._core.model.model cimport Engine

# Records what a request of this size needs, including all memory that is unavailable now, and sets the engine's soft
# limit accordingly.
cdef void note_need(Engine* engine, bytes_t* most_needed, bytes_t size) noexcept nogil


cdef class PinnedAllocator(AllocatorBase):
    cdef PinnedMemory memory
    cdef PinnedBlocks blocks        # None in the mode "tight"
    cdef Allocator tight            # None in the mode "torch"
    cdef bytes_t most_needed        # in the mode "tight": bytes in use or waiting at once

    cdef address_t allocate(self, object size) except? 0
    cdef address_t serve_block(self, bytes_t size) except 0
    cdef int free_block(self, address_t address, object streams) except -1
    cdef int release(self, address_t address, object streams) except -1
    cdef int use_tight(self, address_t address, object stream) except -1
