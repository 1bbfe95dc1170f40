"""Streams and events, on the contract's terms.

The driver does not check stream handles: a destroyed one crashes the process, and its number may come back
as somebody else's stream. So a stream that is given back is parked, never destroyed. While it is parked, its
handle is known to be dead and cannot be in use elsewhere; the next request for a stream takes an idle parked
one. There are never more streams than were alive at once. Streams of others are looked at before the engine
uses one that it was given earlier.

Stream 0 is the legacy default stream; streams made here do not wait for it.
"""

from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._core.contract.types cimport stream_t
from allotment._devices.cuda.context cimport CudaContext
from allotment._devices.cuda.driver cimport CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream
from allotment._devices.per_thread cimport is_thread_stream, own_thread_stream

cdef inline CUstream driver_stream(stream_t stream) noexcept nogil:
    """The driver's handle of a stream; for those that each thread has for itself see `per_thread`."""
    if not is_thread_stream(stream):
        return <CUstream> stream
    return <CUstream> <stream_t> (CU_STREAM_PER_THREAD if stream == own_thread_stream() else CU_STREAM_LEGACY)


cdef inline bint is_legacy(stream_t stream) noexcept nogil:
    """The default stream can never be captured; to ask while others are can be an error."""
    return stream == 0 or <stream_t> driver_stream(stream) == CU_STREAM_LEGACY


cdef void fill_streams(DeviceTable* table) noexcept

# Whether a stream was destroyed by its user and is parked; the status to return if it is.
cdef bint is_parked(CudaContext* context, stream_t stream) noexcept nogil
cdef status_t refuse_parked() noexcept nogil
