"""What was in paused memory, kept on the host until it is resumed.

Copies go through the device, on streams of their own and in pieces, to host memory that the device reaches quickly
where it has such: ordinary pages that are pinned, because a driver that makes its own takes longer for that than for
the copies; where it pins none, its own. Memory that this process can read is copied by the calling thread. Nothing is
kept beyond the last use of it: as much host memory is taken at each pause as is given back at the resume.
"""

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.mechanism.pausing cimport ExtentList

cdef struct Piece:
    address_t address           # where it belongs
    address_t host              # where it is; 0: not obtained
    bytes_t size

cdef class Contents:
    cdef Device device
    cdef Piece* pieces
    cdef size_t count
    cdef bytes_t total
    cdef object pages           # RegisteredPages that all pieces lie in, one behind the other; or None
    cdef stream_t streams[2]    # taken in turn
    cdef int stream_count

    cdef int plan(self, Device device, const ExtentList* list) except -1
    cdef int obtain(self) except -1                 # host memory for all of it
    cdef bint obtain_registered(self) except -1     # False if the device pins no memory that is there already
    cdef int save(self) except -1
    # Only what is in `wanted`: a part of what was planned, in the same order. The rest may have no memory any more
    cdef int restore(self, const ExtentList* wanted, object progress) except -1
    cdef size_t overlaps(self, const ExtentList* wanted, Piece* found) noexcept nogil
    cdef int copy(self, const Piece* pieces, size_t count, bytes_t total, bint saving, object progress) except -1
    cdef int wait(self) except -1
    cdef void drop(self) noexcept
