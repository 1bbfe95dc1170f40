"""Releasing a pool's cached memory to the device, in PyTorch's order.

Blocks go in the order of the free set: by stream handle, size, address. A walk first collects the candidates and sorts
them. So it costs O(k log k) for k released blocks, however many blocks exist (expandable memory: k free blocks of a
page or more).
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Block, Engine, Failure, Pool

cdef struct BlockList:
    Block** blocks
    size_t count, room

cdef bint list_append(BlockList* list, Block* block) noexcept nogil
cdef void list_sort(BlockList* list) noexcept nogil
cdef bint segment_release(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef bint release_segments(Engine* engine, BlockList* list, bytes_t keep, uint32_t context,
                           Failure* failure) noexcept nogil
cdef bint release_free_lists(
        Engine* engine, Pool* pool, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
cdef bint drop_ranges(Engine* engine, Pool* pool, Failure* failure) noexcept nogil
