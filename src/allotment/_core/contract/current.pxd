"""The calling thread's current stream of a device.

A request says for which stream it is; the current stream is the one that the caller works on while asking, and the two
can differ. It is the thread's own, one for each device: what is entered last counts until it is left. Whoever does not
say has none, and then the stream of the request counts, else the default one.
"""

from allotment._core.contract.types cimport stream_t

cdef struct CurrentStream:
    const void* device          # `self` of its table in the contract
    stream_t stream
    CurrentStream* outer        # what was current before

cdef void current_enter(CurrentStream* entered, const void* device, stream_t stream) noexcept nogil
cdef bint current_leave(CurrentStream* entered) noexcept nogil
cdef CurrentStream* current_find(const void* device, stream_t stream) noexcept nogil
cdef stream_t current_stream(const void* device, stream_t otherwise) noexcept nogil
