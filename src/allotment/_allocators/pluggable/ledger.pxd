"""Records of an allocator made of a user's functions: which pointers are allocated, and their totals.

Two functions provide and take back memory and report nothing. The ledger knows only what passed through this package:

    address -> Entry        size, device and stream of the request: the arguments for the free function
    device  -> Account      its counters, each pointer being a segment of one block

    - An address that is returned again before it was freed keeps its first entry, and counts once.
    - The null pointer gets an entry like any other, for a later free of it, but counts as no memory: only as a request
      that was refused, if anything was requested.

The lock guards only C data: no user function is called under it, and no thread under it waits for the interpreter lock.
So a thread holds it for nanoseconds, and may wait for it while holding the interpreter lock.
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
    PointerMap entries          # address -> Entry; null, which cannot be a key, is separate
    Entry null
    bint null_is_out
    Slab records
    Account* accounts           # of devices, in order of their first request
    ForkGuard fork_guard

cdef bint ledger_init(Ledger* ledger) noexcept nogil
cdef void ledger_clear(Ledger* ledger) noexcept nogil

# Returns False, without a change, if the host has no memory for the entry.
cdef bint ledger_enter(Ledger* ledger, address_t address, bytes_t size, device_t device,
                       stream_t stream) noexcept nogil

# Counts a request that ended without a pointer.
cdef void ledger_refused(Ledger* ledger, device_t device) noexcept nogil

# Removes a pointer; returns False if it is not allocated.
cdef bint ledger_remove(Ledger* ledger, address_t address, Entry* removed) noexcept nogil

# Returns False, and leaves `found` unchanged, if the pointer is not allocated.
cdef bint ledger_find(Ledger* ledger, address_t address, Entry* found) noexcept nogil

# Finds the allocation that contains an address, even in its middle; visits all entries if the address is not a start.
cdef bint ledger_find_around(Ledger* ledger, address_t address, Entry* found) noexcept nogil

# The allocated bytes of all devices.
cdef bytes_t ledger_live_bytes(Ledger* ledger) noexcept nogil

cdef void ledger_stats(Ledger* ledger, device_t device, Stats* copy) noexcept nogil
cdef void ledger_reset_peak(Ledger* ledger, device_t device) noexcept nogil
cdef void ledger_reset_accumulated(Ledger* ledger, device_t device) noexcept nogil

# Returns every entry that has memory, in no order, as an array that the caller frees; NULL if the host has no memory
# for it.
cdef Entry* ledger_copy(Ledger* ledger, size_t* count) noexcept nogil
