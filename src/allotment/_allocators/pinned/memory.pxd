"""Pinned memory as a device: its segments are host memory that another device reaches quickly. So the engine can divide
it like any memory, and the PyTorch-like cache gets its blocks from the same place. Where a segment comes from, in this
order:

    reserve one large segment, allocated at the first request; pages are taken from its front and never returned
    registered   ordinary pages, on a NUMA node if one is named, touched and registered by several threads
    device       its own pinned memory

Streams and events are those of the other device.

Any thread may call it, with or without the interpreter lock; only registered pages need that lock, and acquire it.
"""

from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport Device, DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, stream_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock

cdef inline stream_t host_stream() noexcept nogil:
    """The host as a stream: a number that no stream of a device has."""
    return <stream_t> 0x7FFFFFFFFFFFFF00


cdef struct Timing:             # of calls, in microseconds
    uint64_t total
    uint64_t longest
    uint64_t shortest
    uint64_t count

cdef class PinnedMemory(Device):
    cdef Device inner
    cdef DeviceTable* device    # of `inner`
    cdef object numa_node       # the node's number, or None
    cdef object pages           # RegisteredPages, or None
    cdef bint uses_pages        # some segments are registered pages
    cdef bint registers         # and so are new ones
    cdef object last_error      # the exception that Python raised in a call of the contract
    cdef Lock lock              # guards the reserve and the timings; held without waiting
    cdef ForkGuard fork_guard
    cdef bytes_t reserve_size   # 0: no reserve
    cdef address_t reserve_next
    cdef address_t reserve_end
    cdef bint may_be_unlocked   # pinned memory that the system did not lock in place, according to the device
    cdef bint warned            # of that
    cdef Timing obtaining
    cdef Timing releasing

    cdef int register_pages(self, bint on, object threads) except -1
    cdef status_t obtain(self, bytes_t size, address_t* address) noexcept nogil
    cdef status_t release(self, address_t address) noexcept nogil
    cdef status_t set_reserve_aside(self) noexcept nogil
    cdef bint take_from_reserve(self, bytes_t size, address_t* address) noexcept nogil
    cdef status_t ask_device(self, bytes_t size, address_t* address) noexcept nogil
    cdef void note_time(self, Timing* timing, uint64_t started) noexcept nogil
    cdef bint is_reserved(self, address_t address) noexcept nogil

cdef dict timing_dict(const Timing* timing)
