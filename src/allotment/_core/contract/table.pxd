"""The contract between the engine and a device: one table of C functions.

The engine knows no driver. It calls a device only through this table. Anything that fills in a table is a device: a
GPU's driver, host memory, a simulation, or a class that a user wrote in Python.

What callers guarantee
    - `self` is the table's own `self`, sizes are > 0, addresses and handles came from this table.
    - Calls may come from any thread, several at once, without the interpreter lock. The engine holds none of its locks
      when it calls a function that may block (segment_free and the synchronize functions). The other functions must not
      block on device work, nor on a thread that may be inside the engine.
    - Ranges, chunks and pages are multiples of `granularity`; only whole chunks are mapped.

What a device guarantees
    - Every function returns a status and never raises; out-parameters are written only on OK.
    - A call that does not return OK has changed nothing (a failed map has mapped nothing).
    - OUT_OF_MEMORY means that freeing memory and retrying may help. With any other status a retry is pointless.
    - `describe` returns the text of the last failure that the calling thread saw.
    - A function that the device lacks is NULL, and the capability for it is not set.

Only `_core/contract/raising.pyx` turns a status into an exception.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t

from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, graph_t, node_t, stream_t)

ctypedef int status_t

cdef enum:
    TABLE_VERSION = 1

# --- written by `make generate` from _core/contract/operations.py ---
cdef enum:
    OK = 0
    OUT_OF_MEMORY = 1       # the device has no room for this now
    NOT_READY = 2           # an event or stream still has work; returned only by event_query and stream_query
    UNSUPPORTED = 3         # this device cannot do that
    INVALID = 4             # a handle or address that is not, or no longer, valid on this device
    DEVICE_ERROR = 5        # the driver failed; `describe` has its text

cdef enum:                  # capabilities
    CAN_VIRTUAL = 1         # reserve, create, map, unmap: expandable segments
    CAN_EVENTS = 2          # streams run asynchronously; events tell when they are done
    CAN_CAPTURE = 4         # streams can be captured into graphs, which can be launched again
    CAN_PEERS = 8           # other devices can get access
    CAN_SHARE = 16          # another process can open the memory
    CAN_COPY = 32
    CAN_PINNED = 64
    IS_HOST = 128           # this process can read and write the addresses
    CAN_STREAM_ORDERED = 256  # has its own pool, which allocates and frees in stream order
    IS_RECORDED = 512       # addresses come from a recording: ranges may overlap, since their lengths are not recorded
    IS_UNCHECKED = 1024     # using a stream that other code created and destroyed may crash

ctypedef enum share_t:      # how memory is shared with another process
    SHARE_IPC = 0           # opaque 64 bytes, made from a plain segment
    SHARE_DESCRIPTOR = 1    # a file descriptor (4 bytes), made from a chunk
    SHARE_FABRIC = 2        # opaque 64 bytes, made from a chunk

cdef enum Operation:        # index of each operation in the table
    SEGMENT_ALLOCATE, SEGMENT_FREE, RANGE_RESERVE, RANGE_RELEASE, CHUNK_CREATE, CHUNK_RELEASE, MAP, UNMAP, SET_ACCESS,
    GRANULARITY, STREAM_CREATE, STREAM_DESTROY, STREAM_QUERY, STREAM_SYNCHRONIZE, STREAM_WAIT, DEVICE_SYNCHRONIZE,
    EVENT_CREATE, EVENT_DESTROY, EVENT_RECORD, EVENT_QUERY, EVENT_SYNCHRONIZE, SHARED_EVENT_CREATE, EVENT_EXPORT,
    EVENT_IMPORT, CAPTURE_BEGIN, CAPTURE_END, CAPTURE_STATUS, CAPTURE_TERMINALS, NODE_PREDECESSORS, CAPTURE_RELAXED,
    GRAPH_LAUNCH, GRAPH_DESTROY, MEMORY_INFO, CLEAR_ERROR, DESCRIBE, COPY, PEER_ENABLE, SEGMENT_EXPORT,
    SEGMENT_IMPORT, SEGMENT_CLOSE, CHUNK_EXPORT, CHUNK_IMPORT, PINNED_ALLOCATE, PINNED_FREE, ORDERED_ALLOCATE,
    ORDERED_FREE, ORDERED_TRIM, ORDERED_USAGE, ORDERED_RESET_HIGH, ORDERED_ACCESS, OPERATION_COUNT

cdef struct DeviceTable:
    size_t size             # of this struct, as the device was compiled
    uint32_t version
    uint32_t capabilities
    device_t device         # index shown in reports and snapshots
    uint64_t serial         # no two devices of a process have the same one; `self` may get a reused address
    void* self
    # Under IS_UNCHECKED: whether stream_create returned this handle. It then stays valid, destroyed
    # or not. Must not block. NULL: it keeps none.
    bint (*keeps_stream)(void* self, stream_t stream) noexcept nogil

    # Plain memory: the only part every device has. `stream` is the stream of the request, for devices that need it.
    # segment_free waits for work that was submitted before and may still touch the segment, as a driver's free does.
    status_t (*segment_allocate)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*segment_free)(void* self, address_t address, bytes_t size) noexcept nogil

    # Virtual memory: addresses (ranges) apart from physical memory (chunks). One chunk may be mapped at several
    # addresses at once. A new mapping is inaccessible until access is set; the device's own access is set with its
    # own index.
    status_t (*range_reserve)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*range_release)(void* self, address_t address, bytes_t size) noexcept nogil
    status_t (*chunk_create)(void* self, bytes_t size, chunk_t* chunk) noexcept nogil
    status_t (*chunk_release)(void* self, chunk_t chunk, bytes_t size) noexcept nogil
    status_t (*map)(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil
    status_t (*unmap)(void* self, address_t address, bytes_t size) noexcept nogil
    status_t (*set_access)(void* self, address_t address, bytes_t size, device_t device) noexcept nogil
    status_t (*granularity)(void* self, bytes_t* size) noexcept nogil

    # Creating streams. stream_destroy makes the handle INVALID for every later call, except that event_record may
    # still accept it: the event is then done when the work submitted to the stream is done. That lets memory used by
    # such a stream be freed without waiting; if the device refuses the handle, the engine synchronizes the whole
    # device.
    status_t (*stream_create)(void* self, stream_t* stream) noexcept nogil
    status_t (*stream_destroy)(void* self, stream_t stream) noexcept nogil

    # Streams and events: without them all work counts as finished once it is submitted.
    status_t (*stream_query)(void* self, stream_t stream) noexcept nogil
    status_t (*stream_synchronize)(void* self, stream_t stream) noexcept nogil
    status_t (*stream_wait)(void* self, stream_t stream, event_t event) noexcept nogil
    status_t (*device_synchronize)(void* self) noexcept nogil
    status_t (*event_create)(void* self, event_t* event) noexcept nogil
    status_t (*event_destroy)(void* self, event_t event) noexcept nogil
    status_t (*event_record)(void* self, event_t event, stream_t stream) noexcept nogil
    status_t (*event_query)(void* self, event_t event) noexcept nogil
    status_t (*event_synchronize)(void* self, event_t event) noexcept nogil

    # Events for other processes. An event from shared_event_create is used like any other. An imported event stands
    # for what its owner recorded in it last.
    status_t (*shared_event_create)(void* self, event_t* event) noexcept nogil
    status_t (*event_export)(void* self, event_t event, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
    status_t (*event_import)(void* self, const unsigned char* handle, size_t length, event_t* event) noexcept nogil

    # Graph capture. `capture` is 0 when the stream is not being captured. capture_terminals and node_predecessors
    # write at most `capacity` nodes and set `count` to the number that exists. capture_relaxed sets whether the
    # calling thread may call device malloc during a capture. The caller owns a graph from capture_end to
    # graph_destroy; a graph that is destroyed while it runs still runs to its end.
    status_t (*capture_begin)(void* self, stream_t stream, capture_t* capture) noexcept nogil
    status_t (*capture_end)(void* self, stream_t stream, graph_t* graph) noexcept nogil
    status_t (*capture_status)(void* self, stream_t stream, capture_t* capture) noexcept nogil
    status_t (*capture_terminals)(void* self, stream_t stream, node_t* nodes, size_t capacity,
                                  size_t* count) noexcept nogil
    status_t (*node_predecessors)(void* self, node_t node, node_t* nodes, size_t capacity,
                                  size_t* count) noexcept nogil
    status_t (*capture_relaxed)(void* self, bint relaxed) noexcept nogil
    status_t (*graph_launch)(void* self, graph_t graph, stream_t stream) noexcept nogil
    status_t (*graph_destroy)(void* self, graph_t graph) noexcept nogil

    # Amount of memory.
    status_t (*memory_info)(void* self, bytes_t* free, bytes_t* total) noexcept nogil

    # Sticky errors.
    status_t (*clear_error)(void* self) noexcept nogil

    # Text of a failure. Writes the text of the last failure that the calling thread saw: at most `capacity` bytes;
    # returns how many.
    size_t (*describe)(void* self, char* text, size_t capacity) noexcept nogil

    # Copies. In stream order; `destination_device` and `source_device` may differ from this one.
    status_t (*copy)(void* self, address_t destination, address_t source, bytes_t size, device_t destination_device,
                     device_t source_device, stream_t stream) noexcept nogil

    # Other devices. set_access gives another device access to chunks.
    status_t (*peer_enable)(void* self, device_t other) noexcept nogil

    # Sharing plain memory with another process. A handle of 4 bytes is a file descriptor, which the device keeps open
    # as long as the segment. To import it, the other process passes a descriptor of its own for the same file, and
    # may close it afterwards. A handle of any other length is opaque. Exporting a segment again returns the same
    # handle.
    status_t (*segment_export)(void* self, address_t base, unsigned char* handle, size_t capacity,
                               size_t* length) noexcept nogil
    status_t (*segment_import)(void* self, const unsigned char* handle, size_t length, address_t* base) noexcept nogil
    status_t (*segment_close)(void* self, address_t base) noexcept nogil

    # Sharing chunks with another process. Exporting a chunk again returns the same handle. The device owns a
    # descriptor and keeps it open until chunk_release. To import it, the other process passes one of its own for the
    # same file, and may close it afterwards.
    status_t (*chunk_export)(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
    status_t (*chunk_import)(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                             chunk_t* chunk) noexcept nogil

    # Host memory that the device can reach quickly.
    status_t (*pinned_allocate)(void* self, bytes_t size, address_t* address) noexcept nogil
    status_t (*pinned_free)(void* self, address_t address) noexcept nogil

    # A stream-ordered pool that the device itself keeps. The first call creates the pool. Memory freed on a stream
    # may be reused on that stream at once, and on others once that stream has reached the free. On a stream that is
    # being captured, both calls become nodes of the graph: memory allocated inside may be freed there, or outside
    # once the graph has run; memory allocated outside cannot be freed inside. Usage counts the pool, not graphs:
    # bytes in use, bytes that the pool holds, and the peak of either since ordered_reset_high.
    status_t (*ordered_allocate)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*ordered_free)(void* self, address_t address, stream_t stream) noexcept nogil
    status_t (*ordered_trim)(void* self, bytes_t keep) noexcept nogil
    status_t (*ordered_usage)(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                              bytes_t* reserved_high) noexcept nogil
    status_t (*ordered_reset_high)(void* self) noexcept nogil
    status_t (*ordered_access)(void* self, device_t device) noexcept nogil

# --- end of what is generated ---

# Where the table's function number `place` is stored: the functions form an array.
cdef inline void** entry(const DeviceTable* table, int place) noexcept nogil:
    return <void**> &table.segment_allocate + place


cdef class Device:
    """Base of every device in Python: owns one filled-in table.

    The table lives as long as this object; an allocator holds a reference to the object. Subclasses fill in `table` in
    `__cinit__` and never change it afterwards.
    """
    cdef DeviceTable table
    cdef object __weakref__
    cdef str name                   # such as "cuda:1"
    cdef str family                 # such as "cuda": other code decides by the family, never by the name
