"""Streams and events as users hold them, over any device's contract table."""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport event_t, stream_t


cdef class Stream:
    cdef Device device
    cdef stream_t handle
    cdef bint destroyed
    cdef bint is_default            # the device's own: not ours to destroy
    cdef bint is_foreign            # made elsewhere, and known by its handle: likewise

    cdef int check(self) except -1


cdef class Event:
    cdef Device device
    cdef Stream stream              # whose place in its work this is
    cdef event_t handle
