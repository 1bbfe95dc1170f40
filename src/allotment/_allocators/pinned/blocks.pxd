"""Pinned memory in PyTorch's manner: powers of two, no splitting, no merging, events for what streams still use.

A block is in one of four places:

    lent      in use
    loose     freed, with streams that may still copy from or to it, and no event recorded yet
    waiting   for an event of each of those streams, in one queue: events are polled in order of the frees, and one
              that is not done yet holds up all that follow
    kept      cached on the free list of its size class, last in first out

One event serves all blocks that were loose on its stream: the next request records it, after all of them. A framework
that decides as PyTorch does has an event recorded at each free instead (`records_at_once`). A block freed without a
stream costs no event.

Kept blocks and events belong to a pool. Requests go to the default pool, or, while a route accepts them, to a private
one: a graph's blocks serve only captures of its pool. A pool without users ends with its last block.

Locking: `lock` guards everything here; the interpreter lock is not needed. The lock is released while the device
allocates, frees or synchronizes. A block that such a step has removed from its place is out of reach for other threads
until the step puts it somewhere else. A device written in Python, or a garbage collection, may call back on the thread
that holds the lock: its frees are done when the lock is released, any other call fails.
"""

from cpython.pystate cimport PyThreadState
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._allocators.pinned.memory cimport PinnedMemory
from allotment._core.contract.table cimport DeviceTable, status_t
from allotment._core.contract.types cimport address_t, bytes_t, count_t, event_t, stream_t
from allotment._core.model.model cimport drop_t, filter_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock
from allotment._core.tools.pointer_map cimport PointerMap

cdef enum:
    CLASS_COUNT = 64

cdef enum Reason:               # why a call failed
    DEVICE_SAID_NO              # with `status`
    NO_PINNED_MEMORY            # and the cache has none either
    NO_RECORDS                  # the host has no memory for them
    NOT_LENT                    # no block in use begins at the address
    CALLED_FROM_INSIDE
    ROUTED_ALREADY
    NOT_ROUTED
    NO_SUCH_POOL

cdef struct Fault:
    Reason reason
    status_t status
    const char* operation       # of the device
    bytes_t size                # requested
    address_t address

cdef struct PinnedBlock:
    address_t address
    bytes_t size                # a power of two, unless the settings let it be exact
    int size_class              # ceil(log2 size)
    size_t awaited              # events that it waits for
    bint lent
    bint in_capture             # requested while the current stream was being captured: see `free`
    bint freed_inside           # freed by a call from inside
    PinnedPool* pool
    PinnedBlock* next           # on the list of its size class, or of those freed inside
    stream_t* streams           # recorded for it
    size_t stream_count, stream_room

cdef struct Wait:               # blocks freed on a stream, and the event that they wait for
    stream_t stream
    event_t event               # after it was recorded
    PinnedBlock** blocks
    size_t count, room
    Wait* next

cdef struct PinnedPool:
    uint64_t first, second
    int uses
    size_t blocks
    PinnedBlock* kept[CLASS_COUNT]
    Wait* loose
    Wait* oldest
    Wait* newest
    bint processing             # a thread is processing the queue
    PinnedPool* next

cdef struct PinnedRoute:        # the oldest that accepts a request serves it
    PinnedPool* pool
    filter_t accepts
    drop_t drop
    void* self
    PinnedRoute* next

cdef struct Count:
    count_t current, peak, allocated, freed

cdef enum PinnedAction:         # as the engine's history numbers them
    PINNED_ALLOCATED = 0
    PINNED_FREE_REQUESTED = 1
    PINNED_FREE_COMPLETED = 2
    PINNED_OBTAINED = 3
    PINNED_RETURNED = 4

# Called for each action, under the lock; it must not call the allocator.
ctypedef void (*pinned_listener_t)(void* self, int action, address_t address, bytes_t size, uint64_t first,
                                   uint64_t second) noexcept nogil
ctypedef void (*pinned_visit_t)(void* self, address_t address, bytes_t size, int allocated, int active, uint64_t first,
                                uint64_t second) noexcept nogil

cdef class PinnedBlocks:
    cdef PinnedMemory memory
    cdef DeviceTable* device        # of the memory's device
    cdef Lock lock
    cdef ForkGuard fork_guard
    cdef bytes_t most_rounded       # larger requests are not rounded up to a power of two
    cdef bytes_t most_kept          # larger blocks are not cached
    cdef bint catches_all           # if the device fails to free memory, the memory counts as freed anyway
    cdef bint looks_in_background
    cdef bint records_at_once
    cdef object background          # the thread that polls, if the settings ask for one; None before its first use
    cdef bint has_background
    cdef stream_t (*framework_stream)(int device) noexcept nogil     # a framework's current stream; NULL: ours
    cdef pinned_listener_t listener                        # NULL: no listener
    cdef void* listening
    cdef PointerMap by_address
    cdef PinnedPool default_pool
    cdef PinnedRoute* routes
    cdef event_t* spare_events
    cdef size_t spare_count, spare_room
    cdef PinnedBlock* freed_inside
    cdef Count owned
    cdef Count owned_bytes
    cdef Count active[CLASS_COUNT]
    cdef Count active_bytes[CLASS_COUNT]
    cdef Count buckets[CLASS_COUNT]
    cdef object __weakref__
    cdef bint limited
    cdef bytes_t limit
    cdef bytes_t asked              # of the device, by threads that wait for one of its calls

    # For callers outside; they return whether they succeeded.
    cdef address_t serve(self, bytes_t size, Fault* fault) noexcept nogil
    cdef bint free(self, address_t address, const stream_t* streams, size_t count, Fault* fault) noexcept nogil
    cdef bint is_lent(self, address_t address) noexcept nogil
    cdef bint use(self, address_t address, stream_t stream, Fault* fault) noexcept nogil
    cdef bint empty(self, Fault* fault) noexcept nogil
    cdef bint begin_routing(self, uint64_t first, uint64_t second, filter_t accepts, drop_t drop, void* self_,
                            Fault* fault) noexcept nogil
    cdef bint end_routing(self, uint64_t first, uint64_t second, Fault* fault) noexcept nogil
    cdef bint release_pool(self, uint64_t first, uint64_t second, Fault* fault) noexcept nogil
    cdef void listen(self, pinned_listener_t listener, void* listening) noexcept nogil
    cdef void follow(self, stream_t (*current)(int device) noexcept nogil) noexcept nogil
    cdef bint visit(self, pinned_visit_t visit, void* visiting) noexcept nogil
    cdef count_t active_now(self) noexcept nogil
    cdef void reset_peaks(self) noexcept nogil
    cdef void reset_sums(self) noexcept nogil

    # With the lock held.
    cdef bint enter(self, Fault* fault) noexcept nogil
    cdef void leave(self) noexcept nogil
    cdef PyThreadState* begin_unlocked(self) noexcept nogil
    cdef void end_unlocked(self, PyThreadState* unlocked) noexcept nogil
    cdef address_t serve_inside(self, bytes_t size, Fault* fault) noexcept nogil
    cdef bint free_inside(self, address_t address, const stream_t* streams, size_t count, Fault* fault) noexcept nogil
    cdef PinnedBlock* lent_block(self, address_t address, Fault* fault) noexcept nogil
    cdef PinnedPool* pool_for(self, stream_t current) noexcept nogil
    cdef PinnedPool* find_pool(self, uint64_t first, uint64_t second) noexcept nogil
    cdef PinnedBlock* obtain(self, bytes_t size, int size_class, PinnedPool* pool, Fault* fault) noexcept nogil
    cdef bint ask(self, bytes_t size, address_t* address, Fault* fault) noexcept nogil
    cdef bint release(self, PinnedBlock* block, Fault* fault) noexcept nogil
    cdef bint empty_pool(self, PinnedPool* pool, Fault* fault) noexcept nogil
    cdef bint empty_all(self, Fault* fault) noexcept nogil
    cdef void drop_ended_pools(self) noexcept nogil
    cdef void keep(self, PinnedBlock* block) noexcept nogil
    cdef void notify(self, int action, const PinnedBlock* block) noexcept nogil
    cdef stream_t current(self) noexcept nogil
    cdef int is_capturing(self, stream_t stream, Fault* fault) noexcept nogil       # -1: failed
    cdef int record(self, PinnedPool* pool, Wait* wait, Fault* fault) noexcept nogil
    cdef bint record_loose(self, PinnedPool* pool, Fault* fault) noexcept nogil
    cdef void finish(self, Wait* wait) noexcept nogil
    cdef bint process(self, PinnedPool* pool, Fault* fault) noexcept nogil
    cdef bint await_pool(self, PinnedPool* pool, Fault* fault) noexcept nogil
    cdef bint await_all(self, Fault* fault) noexcept nogil
    cdef int raise_fault(self, const Fault* fault) except -1

cdef const char* pool_words(Reason reason) noexcept nogil
