"""What every kind of allocator has: a device, settings, a limit, copies, figures as text.

    AllocatorBase
      ├─ Allocator                              caching: our engine
      ├─ PinnedAllocator                        pinned: host memory that devices copy from
      ├─ AsyncAllocator                         stream_ordered: the device's own pool
      └─ PluggedMemory ─ PluggableAllocator     pluggable: functions of the user's

Methods that look alike in all of them are written here, over the few operations that a kind fills in. `malloc` and
`free` are not: they are the hot path, and each kind has its own. What only some kinds can do is in their parts, see
`parts`.
"""

from allotment._allocators.owners cimport Owners
from allotment._core.contract.table cimport Device
from allotment._core.contract.types cimport address_t, bytes_t, device_t, stream_t
from allotment._core.mechanism.address_lookup cimport AddressLookup

cdef class AllocatorBase:
    cdef Device device
    cdef object current_settings
    cdef list observers                 # told when memory is out
    cdef Owners owners                  # of blocks; None: a block's only owner is the buffer that was made of it
    cdef bint closed                    # serves no request any more
    cdef object __weakref__

    # What a kind fills in.
    cdef dict counters(self)                                    # by metric, size class and kind
    cdef double fraction(self) except? -1                       # the limit as a part of the device's memory
    cdef int put_fraction(self, double part) except -1          # pre: from 0.0 to 1.0
    cdef bint find_limit(self, bytes_t* most) noexcept          # whether there is one; never waits
    cdef int put_limit(self, bint limited, bytes_t most) except -1
    cdef bytes_t total_bytes(self) noexcept                     # of the device; 0 if it does not tell
    cdef int apply_settings(self, object settings) except -1    # before they become `current_settings`
    cdef int reach_peer(self, device_t peer) except -1
    cdef int require_device(self, str operation) except -1      # raises if its device is a name alone
    cdef AddressLookup find_block(self, address_t address, address_t* start, bytes_t* size) except *
    cdef int require_awake(self, address_t address) except -1   # raises if a live block's memory is paused
    # Nothing, if `buffer` no longer owns the block; NULL: whoever owns it. pre: address != 0
    cdef int free_owned(self, address_t address, void* buffer) except -1
    cdef str place(self)                                        # for `repr`: on which device
    cdef str figures(self)                                      # live and reserved bytes as text; never fails or waits
    cdef bint is_readable(self) noexcept                        # whether this process can read the memory
    cdef bytes_t live_bytes(self) noexcept                      # in use now; never waits
    cdef int drain(self) except -1                              # frees what it has kept back by itself
    cdef int shut(self) except -1                               # gives back what is not in use; may be called again

    # What they use.
    cdef object owned(self, object address, object size, object stream)
    # A buffer that the calling thread may touch at once: nothing that is queued uses its memory.
    cdef object ready_buffer(self, object size, object stream)
    cdef stream_t stream_handle(self, object stream) except? 0xFFFFFFFFFFFFFFFF
    cdef stream_t stream_asked(self, object stream) except? 0xFFFFFFFFFFFFFFFF     # None: the thread's current one
    cdef int change_settings(self, object settings) except -1
    cdef object expect_backend(self, object settings, str expected)
    cdef object too_large_facts(self, object requested)
    cdef bytes_t limit_of(self, double part) except? 0
    cdef bytes_t known_total(self) except 0                     # raises UnsupportedError if the device does not tell
    cdef int tell_observers(self, object facts) except -1
    cdef int require_open(self) except -1
    cdef int require_readable(self) except -1
    cdef int warn_of(self, bytes_t live) except -1              # that ends with its allocator

# Raises unless all of it lies in one live block; what lies elsewhere may pass.
cdef AddressLookup require_extent(
    AllocatorBase allocator, address_t address, bytes_t size, bint passes_elsewhere=*) except *
# A device object as it is, or the one that a name stands for; of host memory, one that shares it if asked for.
cdef Device device_given(object device, bint shareable=*)
cdef str amount(object size)                # as `repr` shows it
