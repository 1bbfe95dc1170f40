"""Releasing cached memory to the device: from which pools, and when.

The pool's placement decides what to release, in which order. If the device refuses, the walk ends; what was released
stays released.
"""

from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport bytes_t
from allotment._core.model.model cimport Engine, Failure, Pool

cdef bint release_everything(Engine* engine, bint captured, uint32_t context, Failure* failure) noexcept nogil
# Releases until at most `keep` bytes are reserved, or nothing more can go.
cdef bint release_down_to(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
# Releases what tags have cached, until all pools together hold at most `keep`.
cdef bint release_tags(Engine* engine, bytes_t keep, uint32_t context, Failure* failure) noexcept nogil
# Deletes the pools of tags that have neither memory nor a limit; a request creates them again.
cdef bint forget_idle_tags(Engine* engine, Failure* failure) noexcept nogil
cdef bint release_unused_pools(Engine* engine, uint32_t context, Failure* failure) noexcept nogil
cdef bint release_one_pool(Engine* engine, Pool* pool, bint captured, uint32_t context,
                           Failure* failure) noexcept nogil
