"""The simulated device's own records. What it is: see simulated.pyx."""

from libc.stddef cimport size_t
from libc.stdint cimport uint64_t

from allotment.core.backend cimport Device, status_t
from allotment.core.lock cimport Lock
from allotment.core.pointer_map cimport PointerMap
from allotment.core.types cimport address_t, bytes_t, capture_t, node_t

cdef enum Operation:
    SEGMENT_ALLOCATE, SEGMENT_FREE
    RANGE_RESERVE, RANGE_RELEASE, CHUNK_CREATE, CHUNK_RELEASE, MAP, UNMAP, SET_ACCESS
    STREAM_CREATE, STREAM_DESTROY, STREAM_SYNCHRONIZE, STREAM_WAIT, DEVICE_SYNCHRONIZE
    EVENT_CREATE, EVENT_DESTROY, EVENT_RECORD, EVENT_QUERY, EVENT_SYNCHRONIZE
    CAPTURE_BEGIN, CAPTURE_END, CAPTURE_STATUS, CAPTURE_TERMINALS, NODE_PREDECESSORS
    MEMORY_INFO, COPY
    OPERATION_COUNT

cdef struct Refusal:
    uint64_t after          # calls that still succeed
    uint64_t times          # then this many fail
    status_t status

cdef struct SimChunk:
    bytes_t size
    uint64_t views
    bint released           # memory goes back once it is mapped nowhere

cdef struct NodeSet:
    node_t* nodes
    size_t count, room

cdef struct SimStream:
    uint64_t launched       # units of work so far
    uint64_t finished       # of those
    SimCapture* capture
    NodeSet terminals       # while captured: what the next unit of work comes after
    SimStream* older        # the stream made before it

cdef struct SimCapture:
    capture_t id
    uint64_t origin         # stream handle
    bint broken
    SimCapture* next

cdef struct SimEvent:
    SimStream* stream       # NULL: never recorded, so finished
    uint64_t tick           # finished when the stream has finished this much
    SimCapture* capture     # recorded inside a capture: these nodes come before who waits for it
    NodeSet nodes

cdef struct Simulation:
    Lock lock
    void* script                # the device's script, NULL without one
    bytes_t capacity, used
    address_t next_address
    uint64_t last_handle
    PointerMap segments         # address -> size
    PointerMap ranges           # base -> size
    PointerMap chunks           # handle -> SimChunk
    PointerMap mappings         # address -> SimChunk
    PointerMap streams          # handle + 1 -> SimStream
    SimStream* newest_stream    # of all that ever were: events refer to destroyed ones
    SimCapture* first_capture   # of those under way
    PointerMap events           # handle -> SimEvent
    PointerMap nodes            # node -> NodeSet of predecessors
    uint64_t called[OPERATION_COUNT]
    Refusal refusals[OPERATION_COUNT]
    Refusal refusal             # of whatever operation

cdef class SimulatedDevice(Device):
    cdef Simulation simulation
    cdef object answerer        # owns what simulation.script points at

    cdef int raise_unless(self, status_t status, str operation) except -1
