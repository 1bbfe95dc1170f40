"""Releasing cached memory to the device: from which pools, and when.

The pool's placement decides what to release and in which order. If the device refuses, the walk ends; what it has
released stays released.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Pool

cdef bint release_everything(Engine* engine, bint captured, uint32_t context, Failure* failure) noexcept nogil
# Releases cached memory until at most `keep` bytes are reserved, or nothing more can be released.
cdef bint release_down_to(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
# Releases memory cached for tags, until all pools together hold at most `keep` bytes.
cdef bint release_tags(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
# Deletes the pools of tags that have neither memory nor a limit; the next request creates them again.
cdef bint forget_idle_tags(Engine* engine, Failure* failure) noexcept nogil
cdef bint release_unused_pools(Engine* engine, uint32_t context, Failure* failure) noexcept nogil
cdef bint release_one_pool(Engine* engine, Pool* pool, bint captured, uint32_t context,
                           Failure* failure) noexcept nogil
