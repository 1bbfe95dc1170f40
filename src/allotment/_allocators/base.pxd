"""What every kind of allocator has: a device, settings, a limit, copies, figures as text.

    AllocatorBase
      ├─ Allocator                              caching: our engine
      ├─ PinnedAllocator                        pinned: host memory that devices copy from
      ├─ AsyncAllocator                         stream_ordered: the device's own pool
      └─ PluggedMemory ─ PluggableAllocator     pluggable: functions of the user's

Methods that are alike in all kinds are written here, on top of the few operations that a kind implements. `malloc` and
`free` are not: they are the hot path, and each kind has its own. The parts contain what only some kinds can do; see
`parts`.
"""

from allotment._allocators.owners cimport Owners
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.mechanism.address_lookup cimport AddressLookup

cdef class AllocatorBase:
    cdef Device device
    cdef object current_settings
    cdef list observers                 # called when memory is out
    cdef Owners owners                  # the owners of blocks; None: a block's only owner is the buffer made for it
    cdef bint closed                    # serves no more requests
    cdef bint closing                   # a thread is releasing the memory
    cdef object __weakref__

    # What a kind implements.
    cdef dict counters(self)                                    # counters by metric, size class and kind
    cdef double fraction(self) except? -1                       # the limit as a fraction of the device's memory
    cdef int put_fraction(self, double part) except -1          # pre: from 0.0 to 1.0
    cdef bint find_limit(self, bytes_t* most) noexcept          # whether there is a limit; never waits
    cdef int put_limit(self, bint limited, bytes_t most) except -1
    cdef bytes_t total_bytes(self) noexcept                     # of the device; 0 if it does not report that
    cdef int apply_settings(self, object settings) except -1    # before they become `current_settings`
    cdef int reach_peer(self, device_t peer) except -1
    cdef int require_device(self, str operation) except -1      # raises if its device is only a name
    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *
    cdef int require_awake(self, address_t address) except -1   # raises if the memory of a live block is paused
    # Does nothing if `buffer` no longer owns the block; NULL: frees it whoever owns it. pre: address != 0
    cdef int free_owned(self, address_t address, void* buffer) except -1
    cdef str place(self)                                        # the device, for `repr`
    cdef str figures(self)                                      # live and reserved bytes as text; never fails or waits
    cdef bint is_readable(self) noexcept                        # whether this process can read the memory
    cdef bytes_t live_bytes(self) noexcept                      # in use now; never waits
    cdef int drain(self) except -1                              # frees what the allocator has kept back itself
    cdef int shut(self) except -1                               # releases all memory not in use; may be called again

    # What kinds may use.
    cdef object owned(self, object address, object size, object stream)
    # A buffer that the calling thread may touch at once, because no queued work uses its memory.
    cdef object ready_buffer(self, object size, object stream)
    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF
    cdef stream_t stream_asked(self, object stream) except? 0xFFFFFFFFFFFFFFFF     # None: the thread's current stream
    cdef object present_settings(self)                          # another thread may change them at any time
    cdef int change_settings(self, object settings) except -1
    cdef object expect_backend(self, object settings, str expected)
    cdef object too_large_facts(self, object requested)
    cdef bytes_t limit_of(self, double part) except? 0
    cdef bytes_t known_total(self) except 0                     # raises UnsupportedError if it is not reported
    cdef int tell_observers(self, object facts) except -1
    cdef int require_open(self) except -1
    cdef int require_readable(self) except -1
    cdef int warn_of(self, bytes_t live) except -1              # warns of live memory at the end of its allocator

# Raises unless all of it lies in one live block. Memory of other owners may pass.
cdef AddressLookup require_extent(
    AllocatorBase allocator, address_t address, bytes_t size, bint passes_elsewhere=*) except *
# Returns a device object as it is, or the device of a name. With `shareable`, host memory is shareable.
cdef Device device_given(object device, bint shareable=*)
cdef str amount(object size)                # a number of bytes as `repr` shows it
