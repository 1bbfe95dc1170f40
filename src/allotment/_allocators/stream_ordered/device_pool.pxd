"""Blocks of a device's own stream-ordered pool: their users, and how each is freed.

Nothing is cached, rounded or divided here; the device does that. The device does not know which other streams use a
block, so this file records them. A block with such uses is freed on a stream of the pool's own, the unifying stream,
after that stream was made to wait for all of them:

    asked for on  -----work------.
    used on       ------work-------.---.
    unifying                       wait  free

The lock guards the records and no thread holds it while calling the device. A block that is on its way to the device or
back is in no record, so no other thread can touch it.

While a capture is in progress (anywhere in the process: there is one at a time), memory allocated outside it cannot be
freed. Such frees are postponed, and the first request or free after the capture does them. Memory that the capture
itself allocated belongs to the graph. A stream on which some of it was freed must be joined to the capture before the
capture ends.

A pool may be closed while other threads are inside. From then on no thread gets in, and the last one that leaves frees
all blocks: so the device is there for everybody who is inside, and nobody waits.
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
    bytes_t size            # as requested
    stream_t stream         # of its request
    StreamList uses         # other streams that use it
    uint64_t capture        # number of the capture whose graph owns it, 0 if none
    PoolBlock* next         # among the postponed ones

cdef struct DevicePool:
    DeviceTable* device
    Lock lock
    PointerMap blocks       # address -> PoolBlock in use
    Slab records
    size_t under_way        # threads whose blocks are in no record now: a place in the map is reserved for each
    bytes_t used            # sum of the sizes of blocks in use, postponed or under way
    bytes_t limit           # the most that may be used
    stream_t unifying
    PoolBlock* postponed    # the last one first
    StreamList freed_on     # streams on which something was freed in the current capture
    bint routed             # whether the current capture was announced to it
    size_t inside           # threads in a function that calls the device
    bint closing            # no further thread gets in
    ForkGuard fork_guard

cdef enum PoolOutcome:
    POOL_DONE
    POOL_DONE_LATE          # freed: memory of a graph whose capture is over
    POOL_POSTPONED          # it will be freed when the current capture is over
    POOL_OWN_STREAM         # nothing done: the block's own stream need not be recorded
    POOL_NO_SUCH_BLOCK
    POOL_FULL               # over the limit, or the device is out of memory
    POOL_NO_HOST_MEMORY
    POOL_REFUSED            # the device refused: see PoolRefusal
    POOL_TAKEN              # the device returned the address of a block in use
    POOL_CLOSED             # nothing done, or undone

cdef struct PoolRefusal:
    status_t status
    const char* operation

# Creates the unifying stream. pre: the device has a pool, streams and events
cdef PoolOutcome pool_open(DevicePool* pool, DeviceTable* device, PoolRefusal* refusal) noexcept nogil

# Closes it, and frees what it can, whether in use or not: now, or when the last thread leaves.
cdef void pool_retire(DevicePool* pool) noexcept nogil
cdef bint pool_is_open(const DevicePool* pool) noexcept nogil

# Forgets everything, without calling the device.
cdef void pool_clear(DevicePool* pool) noexcept nogil

cdef PoolOutcome pool_take(DevicePool* pool, bytes_t size, stream_t stream, address_t* address,
                           PoolRefusal* refusal) noexcept nogil
cdef PoolOutcome pool_give(DevicePool* pool, address_t address, PoolRefusal* refusal) noexcept nogil
cdef PoolOutcome pool_use(DevicePool* pool, address_t address, stream_t stream) noexcept nogil
cdef PoolOutcome pool_size_of(DevicePool* pool, address_t address, bytes_t* size) noexcept nogil

# Finds the live block that contains an address, even in its middle; visits all blocks if the address is not a block's
# start.
cdef bint pool_find(DevicePool* pool, address_t address, address_t* start, bytes_t* size) noexcept nogil

# Does the frees that a capture postponed, unless one is in progress; POOL_REFUSED if some of them must be retried.
cdef PoolOutcome pool_catch_up(DevicePool* pool, PoolRefusal* refusal) noexcept nogil

# Makes `stream`, whose capture is about to end, wait for every stream on which memory was freed in the capture.
cdef PoolOutcome pool_join(DevicePool* pool, stream_t stream, PoolRefusal* refusal) noexcept nogil

# Announces a capture, and its end; returns False if the pool is closed, or another capture, not this, is in progress.
# Several pools of a device can take part in one capture, if the device's handle of it is passed: the capture is over
# when its end was announced to the last of them.
cdef bint routing_begin(DevicePool* pool, uint64_t first, uint64_t second, capture_t capture) noexcept nogil
cdef bint routing_end(DevicePool* pool, uint64_t first, uint64_t second) noexcept nogil

# Whether the sizes of all blocks add up to what is used. While threads are at work, the sum may be smaller.
cdef bint pool_adds_up(DevicePool* pool, bytes_t* used, bytes_t* found) noexcept nogil
