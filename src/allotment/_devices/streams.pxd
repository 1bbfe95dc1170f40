"""Streams and events as users hold them, over any device's contract table."""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport event_t, stream_t


cdef class Stream:
    cdef Device device
    cdef stream_t handle
    cdef bint destroyed
    cdef bint is_default            # the device's own, which this object must not destroy
    cdef bint is_foreign            # created elsewhere, known by its handle; likewise

    cdef int check(self) except -1


cdef class Event:
    cdef Device device
    cdef Stream stream              # the stream whose work it marks
    cdef event_t handle

    cdef int wait_here(self) except -1      # `synchronize` without raising the exceptions of the stream's functions


# Whether the calling thread may touch memory of a stream now, because nothing is queued there. Also true where waiting
# is impossible: a stream in a capture, a device without events.
cdef bint has_no_work(Device device, stream_t stream) except -1

# Waits until the work now queued on a stream is done. pre: it has work, and the calling thread does not run it
cdef int await_work(Device device, stream_t stream) except -1

# Returns the stream whose function the calling thread runs, and whether more work is queued behind that function; None
# if the thread runs none. Such a function must not wait for any stream, since that stream may wait for the function.
cdef object stream_of_caller(Device device)
