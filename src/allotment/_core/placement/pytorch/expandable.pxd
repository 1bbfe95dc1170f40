"""Memory that grows in place: a segment whose addresses are reserved once and backed page by page.

    request for more than the free memory at the edge

    before   | in use | free |              unmapped ...
    map      | in use | free |new page|new page|   unmapped ...
    merge    | in use |         free           |   unmapped ...

The rounded request determines the number of new pages; the segment size of plain memory does not. If a request fits in
several places, the lowest address wins. `Range` in the model explains the geometry.

Cost: growing visits the unmapped blocks of one free list by address (holes, normally one). The cost does not depend on
how much is mapped.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Block, Engine, Failure, Range, Request

cdef bytes_t growth_in_place(Engine* engine, Request* request) noexcept nogil
cdef Block* grow_in_place(Engine* engine, Request* request) noexcept nogil
cdef bint unmap_block(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef void free_again(Engine* engine, Block* block) noexcept nogil
cdef bint give_back_if_empty(Engine* engine, Block* block, Failure* failure) noexcept nogil
