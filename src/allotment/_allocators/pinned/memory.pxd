"""Pinned memory as a device: its segments are host memory that another device reaches quickly.

So the engine can divide it like any memory, and the cache in PyTorch's manner gets its blocks from the same place.
Where a segment comes from, in this order:

    reserve      one large segment, set aside at the first request; handed out in pages from the front, never given back
    registered   ordinary pages, on a NUMA node if one is named, touched and registered by several threads
    device       its own pinned memory

Streams and events are those of the other device.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t

cdef struct Timing:             # of calls, in microseconds
    uint64_t total
    uint64_t longest
    uint64_t shortest
    uint64_t count

cdef class PinnedMemory(Device):
    cdef Device inner
    cdef object pages           # RegisteredPages, or None
    cdef object last_error      # what Python raised in a call of the contract
    cdef bytes_t reserve_size   # 0: no reserve
    cdef address_t reserve_next
    cdef address_t reserve_end
    cdef bint warned            # that memory is not locked in place
    cdef Timing obtaining
    cdef Timing releasing

    cdef int obtain(self, bytes_t size, address_t* address) except -1      # a status of the contract
    cdef int release(self, address_t address) except -1
    cdef int warn_of_unlocked(self) except -1
    cdef bint is_reserved(self, address_t address) noexcept

cdef dict timing_dict(const Timing* timing)
