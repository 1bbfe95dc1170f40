"""Plain segments: one device allocation each, allocated and released whole."""

from libc.stdint cimport uint32_t

from allotment._core.model.model cimport Block, Engine, Failure, Request

cdef Block* segment_obtain(Engine* engine, Request* request) noexcept nogil
cdef bint segment_give_back(Engine* engine, Block* block, uint32_t context, Failure* failure) noexcept nogil
cdef void segment_forget(Engine* engine, Block* block) noexcept nogil
cdef void finish_departures(Engine* engine) noexcept nogil
