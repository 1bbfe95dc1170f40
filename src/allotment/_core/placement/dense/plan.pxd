"""How to grow: new memory, or free memory made contiguous under new addresses, whichever costs less.

A plan fills the end of one region, or a new one, with

    the free tail of a region, or of one of the four chunks with the longest ones, or nothing
    wholly free chunks, the smallest that covers the rest, else the largest
    new memory for what is missing
    the free head of the chunk with the longest one, or nothing

and a chunk occurs once in a region. A plan's price is driver time: a cost per view, a cost per new chunk, and for each
MiB beyond the arena's room a cost so high that growing wins only when stitching is expensive. The unused part of the
pieces has a price too, so the plan breaks up the longest free memory last.
"""

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Failure
from allotment._core.placement.dense.structures cimport Arena, DenseChunk, Region

cdef struct Plan:
    Region* region              # NULL: a new one
    DenseChunk* tail_of
    DenseChunk** whole          # freed by plan_clear
    size_t whole_count
    bytes_t create
    DenseChunk* head_of
    bytes_t added               # addresses that it fills
    bytes_t beyond              # bytes created above the room
    double price

cdef struct Terms:
    # The input of a plan.
    bytes_t size
    bytes_t room
    double mebibyte_us          # price of new memory beyond the room
    bint stitches               # chunks may have more than one view
    bint new_regions            # addresses may be reserved

cdef bint plan_cheapest(Arena* arena, const Terms* terms, Plan* best, Failure* failure) noexcept nogil
cdef void plan_clear(Plan* plan) noexcept nogil
