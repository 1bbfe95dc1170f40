"""The policy: which free block serves a request, when to split it, when to grow, what to give back.

This is the one place that decides; everything below it only does what it is told. The rules are
PyTorch's, so that a replay of one of its histories is a proof. A miss goes down this list until a
block is found:

    1  best fit among the free blocks of the request's pool and stream
    2  the free-memory callbacks, then 1 again if one of them freed something
    3  garbage collection: unused segments of at least average age, if a limit and a threshold are set
    4  a new segment (or more pages of an expandable one)
    5  a free block of a private pool that lends when memory is out
    6  release of oversize blocks of the same pool and stream, then 4
    7  release of everything cached, then 4; not while routing is active
    8  out of memory
"""

from allotment.core.model cimport Block, Engine, Request
from allotment.core.types cimport bytes_t

cdef bint policy_splits(const Engine* engine, const Block* block, bytes_t size, bint expandable) noexcept nogil
cdef Block* policy_hit(Engine* engine, Request* request) noexcept nogil
cdef Block* policy_miss(Engine* engine, Request* request) noexcept nogil
cdef bytes_t largest_free_block(Engine* engine) noexcept nogil
