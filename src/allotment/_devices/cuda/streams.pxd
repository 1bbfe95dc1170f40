"""Streams and events for the contract.

The driver does not check stream handles: using a destroyed one crashes the process, and its number may come back as
another owner's stream. So a stream that a user destroys is parked, never destroyed. While it is parked, its handle is
known to be dead and cannot be in use elsewhere; the next request for a stream reuses an idle parked one. So there are
never more streams than were alive at once. Before the engine uses a foreign stream that it got earlier, this module
checks the handle.

Stream 0 is the legacy default stream; streams created here do not wait for it.
"""

from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._core.contract.types cimport stream_t
from allotment._devices.cuda.context cimport CudaContext
from allotment._devices.cuda.driver cimport CU_STREAM_LEGACY, CU_STREAM_PER_THREAD, CUstream
from allotment._devices.per_thread cimport is_thread_stream, own_thread_stream

cdef inline CUstream driver_stream(stream_t stream) noexcept nogil:
    """Return the driver's handle of a stream; for per-thread default streams see `per_thread`."""
    if not is_thread_stream(stream):
        return <CUstream> stream
    return <CUstream> <stream_t> (CU_STREAM_PER_THREAD if stream == own_thread_stream() else CU_STREAM_LEGACY)


cdef inline bint is_legacy(stream_t stream) noexcept nogil:
    """Whether it is the default stream, which can never be captured; querying it during a capture can be an error."""
    return stream == 0 or <stream_t> driver_stream(stream) == CU_STREAM_LEGACY


cdef void fill_streams(DeviceTable* table) noexcept

# Whether a stream was destroyed by its user and is parked; then return refuse_parked().
cdef bint is_parked(CudaContext* context, stream_t stream) noexcept nogil
cdef status_t refuse_parked() noexcept nogil
