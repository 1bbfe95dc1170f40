"""The books of an allocator that is somebody else's functions: which pointers are out, and what they add up to.

Two functions give and take memory and tell us nothing. What can be known is what passed through our hands:

    address -> Entry        size, device and stream of the request: what the free function will be told
    device  -> Account      its counters, each pointer being a segment of one block

    - An address that is handed out again before it was given back keeps its first entry, and counts once.
    - The null pointer is entered like any other, for whoever frees it, but counts as no memory: only as a request
      that was refused, if anything was requested.

The lock guards C data alone: nothing of the user's is called under it and no thread under it wants the interpreter
lock. So it is held for nanoseconds, and may be waited for with the interpreter lock held.
"""

from libc.stddef cimport size_t

from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.records.stats cimport Stats
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._core.tools.slab cimport Slab

cdef struct Entry:
    address_t address
    bytes_t size
    stream_t stream
    device_t device

cdef struct Account:
    device_t device
    Stats stats
    Account* next

cdef struct Ledger:
    Lock lock
    PointerMap entries          # address -> Entry; null, which is no key, stands apart
    Entry null
    bint null_is_out
    Slab records
    Account* accounts           # of devices, in order of their first request
    ForkGuard fork_guard

cdef bint ledger_init(Ledger* ledger) noexcept nogil
cdef void ledger_clear(Ledger* ledger) noexcept nogil

# False if the host has no memory for the entry: then nothing has changed.
cdef bint ledger_enter(Ledger* ledger, address_t address, bytes_t size, device_t device,
                       stream_t stream) noexcept nogil

# A request that ended without any pointer.
cdef void ledger_refused(Ledger* ledger, device_t device) noexcept nogil

# Forget a pointer; False if it is not out.
cdef bint ledger_remove(Ledger* ledger, address_t address, Entry* removed) noexcept nogil

# False, and `found` left alone, if the pointer is not out.
cdef bint ledger_find(Ledger* ledger, address_t address, Entry* found) noexcept nogil

# What is out and holds an address, also in its middle; a walk over all of it, if that is not where it starts.
cdef bint ledger_find_around(Ledger* ledger, address_t address, Entry* found) noexcept nogil

# The bytes that are out, of all devices.
cdef bytes_t ledger_live_bytes(Ledger* ledger) noexcept nogil

cdef void ledger_stats(Ledger* ledger, device_t device, Stats* copy) noexcept nogil
cdef void ledger_reset_peak(Ledger* ledger, device_t device) noexcept nogil
cdef void ledger_reset_accumulated(Ledger* ledger, device_t device) noexcept nogil

# Every entry that is memory, in no order, as an array for the caller to free; NULL if the host has no memory for it.
cdef Entry* ledger_copy(Ledger* ledger, size_t* count) noexcept nogil
