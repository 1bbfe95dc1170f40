"""A simulated device's records, and what all of its operations share.

    simulation    the records; entering and leaving, the script, streams, nodes of a graph
    memory        segments, ranges, chunks and views
    streams       streams, events, captures, graphs
    pool          the device's own stream-ordered pool
    device        the device as Python sees it
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment._core.contract.table cimport OPERATION_COUNT, status_t
from allotment._core.contract.types cimport address_t, bytes_t, capture_t, device_t, node_t, stream_t
from allotment._core.tools.forks cimport ForkGuard
from allotment._core.tools.lock cimport Lock, lock_give
from allotment._core.tools.pointer_map cimport PointerMap

cdef struct Refusal:
    uint64_t after          # calls that still succeed
    uint64_t times          # then this many fail
    status_t status

cdef struct SimChunk:
    bytes_t size
    uint64_t views
    bint released           # memory is freed once it is mapped nowhere
    bint imported           # of another device, which owns the memory

cdef struct NodeSet:
    node_t* nodes
    size_t count, room

cdef struct SimStream:
    uint64_t launched       # units of work so far
    uint64_t finished       # how many of those
    SimCapture* capture
    NodeSet terminals       # while captured: predecessors of the next unit of work
    SimMoment* awaited      # predecessors of its later work, besides its own earlier work
    size_t awaited_count, awaited_room
    SimStream* older        # the stream made before it
    stream_t handle
    SimStream* next_unused

cdef struct SimMoment:      # when a stream has finished this much
    SimStream* stream
    uint64_t tick

cdef struct SimCapture:
    capture_t id
    uint64_t origin         # stream handle
    bint broken
    NodeSet made            # its nodes, deleted with it
    SimCapture* next

cdef struct SimEvent:
    SimStream* stream       # NULL: never recorded, so finished
    uint64_t tick           # finished when the stream has finished this much
    SimCapture* capture     # recorded inside a capture: these nodes come before a stream that waits for it
    NodeSet nodes

cdef struct SimPiece:       # memory of the pool, allocated or free; or, with a capture, of a graph
    address_t address
    bytes_t size
    capture_t capture
    SimStream* freed_on
    SimMoment* freed_after  # the free takes effect after all of these
    size_t freed_after_count
    bint idle               # the free has taken effect
    SimPiece* next          # among the free ones, the last freed first

cdef struct SimPool:
    PointerMap pieces       # address -> SimPiece in use
    SimPiece* free_pieces
    bytes_t used, used_high, reserved, reserved_high

cdef struct Simulation:
    Lock lock
    ForkGuard fork_guard
    void* script                # the device's script, NULL without one
    bytes_t capacity, used
    address_t next_address
    uint64_t last_handle
    PointerMap segments         # address -> size
    PointerMap ranges           # base -> size
    PointerMap chunks           # handle -> SimChunk
    PointerMap mappings         # address -> SimChunk
    PointerMap imported         # base -> the device, for other processes' segments
    PointerMap streams          # handle + 1 -> SimStream
    SimStream* newest_stream    # of all streams that ever existed: events refer to destroyed ones
    SimStream* unused_streams   # destroyed, to be reused, as a driver does with its handles
    SimCapture* first_capture   # of the current ones
    PointerMap events           # handle -> SimEvent
    PointerMap nodes            # node -> NodeSet of predecessors
    PointerMap graphs           # handle -> the device, for existing graphs
    SimPool pool
    uint64_t called[OPERATION_COUNT]
    Refusal refusals[OPERATION_COUNT]
    Refusal refusal             # of any operation
    bint is_listed              # its index is one that a peer can have


# Takes the lock and counts the call; if a refusal is due, releases the lock again.
cdef status_t enter(Simulation* device, int operation) noexcept nogil

# The same for an operation on a stream, which it looks up; INVALID, with the lock released, if it is destroyed.
cdef status_t enter_on(Simulation* device, int operation, stream_t handle, SimStream** stream) noexcept nogil


cdef inline status_t leave(Simulation* device, status_t status) noexcept nogil:
    lock_give(&device.lock)
    return status


cdef inline uint64_t new_handle(Simulation* device) noexcept nogil:
    device.last_handle += 1
    return device.last_handle


cdef inline bint has_come(const SimMoment* moment) noexcept nogil:
    return moment.stream.finished >= moment.tick


# Asks the script. Returns NOT_READY if the script leaves this to the device, OUT_OF_MEMORY if it returns None or False.
# pre: inside
cdef status_t scripted(Simulation* device, str method, tuple arguments, uint64_t* answer) noexcept with gil


cdef enum:
    PAGE = 2097152

# Returns addresses that were never used before.
cdef address_t take_addresses(Simulation* device, bytes_t size) noexcept nogil

# Returns a stream by its handle, NULL if it is destroyed. Numbers are trusted: an unknown one becomes a stream.
cdef SimStream* stream_at(Simulation* device, stream_t handle) noexcept nogil

# Stands in the map for every destroyed stream.
cdef SimStream* destroyed() noexcept nogil

# Adds a unit of work to the capture that a stream is in; 0 if there is no memory for it.
cdef node_t add_node(Simulation* device, SimStream* stream) noexcept nogil

# Adds the missing nodes; returns False if there is no memory for them.
cdef bint set_add(NodeSet* set, const node_t* nodes, size_t count) noexcept nogil
cdef void set_clear(NodeSet* set) noexcept nogil

# The indices of the existing simulated devices, which can get access to each other's memory.
cdef int list_index(device_t index) except -1
cdef int unlist_index(device_t index) except -1
cdef bint is_listed_index(device_t index) noexcept with gil
