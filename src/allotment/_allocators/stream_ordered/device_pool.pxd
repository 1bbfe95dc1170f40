"""Blocks of a device's own stream-ordered pool: who has which, and how each goes back.

Nothing is cached, rounded or divided here; the device does that. What the device does not know is which other
streams work with a block, so that is kept, and a block with such uses is freed on a stream of the pool's own, the
unifying stream, after it was told to wait for all of them:

    asked for on  -----work------.
    used on       ------work-------.---.
    unifying                       wait  free

The lock guards the records and is never held while the device is called; a block that is on its way to the device
or back is in no record, so no other thread can touch it.

While a capture is under way (anywhere in the process: there is one at a time) what was allocated outside it cannot
be freed. Such frees are postponed, and done by the first request or free after it. What the capture itself
allocated is the graph's; a stream on which some of it was freed has to be joined to the capture before it ends.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, stream_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap
from allotment._core.tools.slab cimport Slab

cdef struct StreamList:
    stream_t* streams
    size_t count, room

cdef struct PoolBlock:
    address_t address
    bytes_t size            # as asked for
    stream_t stream         # that it was asked for on
    StreamList uses         # other streams that work with it
    uint64_t capture        # number of the capture whose graph's memory it is, 0 if none
    PoolBlock* next         # among the postponed ones

cdef struct DevicePool:
    DeviceTable* device
    Lock lock
    PointerMap blocks       # address -> PoolBlock in use
    Slab records
    size_t under_way        # threads whose blocks are in no record just now: a place in the map is reserved for each
    bytes_t used            # sizes of all blocks that are in use, postponed or under way
    bytes_t limit           # the most that may be used
    stream_t unifying
    PoolBlock* postponed    # the last one first
    StreamList freed_on     # streams on which something was freed in the capture that is under way
    bint routed             # the capture that is under way was announced to it
    ForkGuard fork_guard

cdef enum PoolOutcome:
    POOL_DONE
    POOL_DONE_LATE          # freed: memory of a graph, and its capture is over
    POOL_POSTPONED          # it will be freed when the capture under way is over
    POOL_OWN_STREAM         # nothing done: the block's own stream need not be declared
    POOL_NO_SUCH_BLOCK
    POOL_FULL               # over the limit, or the device is out of memory
    POOL_NO_HOST_MEMORY
    POOL_REFUSED            # the device said no: see PoolRefusal
    POOL_TAKEN              # the device gave an address that a block in use has

cdef struct PoolRefusal:
    status_t status
    const char* operation

# Makes the unifying stream. pre: the device has a pool, streams and events
cdef PoolOutcome pool_open(DevicePool* pool, DeviceTable* device, PoolRefusal* refusal) noexcept nogil

# Gives back what it can, whoever may still hold it; then forgets everything, without calling the device.
cdef void pool_retire(DevicePool* pool) noexcept nogil
cdef void pool_clear(DevicePool* pool) noexcept nogil

cdef PoolOutcome pool_take(DevicePool* pool, bytes_t size, stream_t stream, address_t* address,
                           PoolRefusal* refusal) noexcept nogil
cdef PoolOutcome pool_give(DevicePool* pool, address_t address, PoolRefusal* refusal) noexcept nogil
cdef PoolOutcome pool_use(DevicePool* pool, address_t address, stream_t stream) noexcept nogil
cdef PoolOutcome pool_size_of(DevicePool* pool, address_t address, bytes_t* size) noexcept nogil

# The live block that holds an address, also in its middle; a walk over all blocks, if it is not at the block's start.
cdef bint pool_find(DevicePool* pool, address_t address, address_t* start, bytes_t* size) noexcept nogil

# What a capture has postponed, unless one is under way; POOL_REFUSED if some of it has to be tried again.
cdef PoolOutcome pool_catch_up(DevicePool* pool, PoolRefusal* refusal) noexcept nogil

# Lets `stream`, whose capture is about to end, wait for every stream on which memory was freed in it.
cdef PoolOutcome pool_join(DevicePool* pool, stream_t stream, PoolRefusal* refusal) noexcept nogil

# Announces a capture, and that it is over; False if another one is under way, or not this one. Several pools of a
# device may be told of one capture, if the device's handle of it is given: it is over when the last of them is told.
cdef bint routing_begin(DevicePool* pool, uint64_t first, uint64_t second, capture_t capture) noexcept nogil
cdef bint routing_end(DevicePool* pool, uint64_t first, uint64_t second) noexcept nogil

# Whether the sizes of all blocks, summed up anew, are what is used; less may be found while threads are at work.
cdef bint pool_adds_up(DevicePool* pool, bytes_t* used, bytes_t* found) noexcept nogil
