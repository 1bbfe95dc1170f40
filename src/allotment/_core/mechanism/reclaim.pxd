"""Giving cached memory back to the device: which pools may, and when.

What of a pool goes, and in which order, is for its placement to say. A refusal by the device ends the walk; what was
released is.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Pool

cdef bint release_everything(Engine* engine, bint captured, uint32_t context, Failure* failure) noexcept nogil
# Until no more than `keep` bytes are reserved, or nothing that is left can go.
cdef bint release_down_to(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
# What tags have cached, until all pools together hold no more than `keep`.
cdef bint release_tags(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
cdef bint release_unused_pools(Engine* engine, uint32_t context, Failure* failure) noexcept nogil
cdef bint release_one_pool(Engine* engine, Pool* pool, bint captured, uint32_t context,
                           Failure* failure) noexcept nogil
