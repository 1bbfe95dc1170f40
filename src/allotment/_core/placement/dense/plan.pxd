"""How to grow: new memory, or what is free put side by side under new addresses, whichever costs less.

A plan fills the end of one region, or a new one, with

    the free tail of a region, or of one of the four chunks with the longest ones, or nothing
    wholly free chunks, the smallest that covers the rest, else the largest
    new memory for what is missing
    the free head of the chunk with the longest one, or nothing

and a chunk occurs once in a region. Its price is driver time: so much for a view, so much for a new chunk, and for
each MiB beyond the room that the arena allows itself, so much that growing is chosen only when stitching is dear. What
is left over of the pieces has a price too: of what is free the longest is broken up last.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Failure
from allotment._core.placement.dense.structures cimport Arena, DenseChunk, Region

cdef struct Plan:
    Region* region              # NULL: a new one
    DenseChunk* tail_of
    DenseChunk** whole          # given back by plan_clear
    size_t whole_count
    bytes_t create
    DenseChunk* head_of
    bytes_t added               # addresses it fills
    bytes_t beyond              # of what is created, above the room
    double price

cdef struct Terms:
    # What a plan is made for.
    bytes_t size
    bytes_t room
    double mebibyte_us          # price of new memory beyond the room
    bint stitches               # chunks may have more than one view

cdef bint plan_cheapest(Arena* arena, const Terms* terms, Plan* best, Failure* failure) noexcept nogil
cdef void plan_clear(Plan* plan) noexcept nogil
