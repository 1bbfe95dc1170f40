"""The contract between the engine and a device: one table of C functions.

The engine knows no driver. Whatever it wants of a device it asks through this table, and a device is
whatever fills one in: the driver of a GPU, host memory, a simulation, or a class a user wrote in Python.

What callers guarantee
    - `self` is the table's own `self`, sizes are > 0, addresses and handles came from this table.
    - Calls may come from any thread, several at once, without the interpreter lock. Those that may wait (segment_free
      and what is called synchronize) are made without any lock of the engine's; the others must not wait for work, nor
      for a thread that may be in the engine.
    - Ranges, chunks and pages are multiples of `granularity`; only whole chunks are mapped.

What a device guarantees
    - Every function returns a status and never raises; out-parameters are written only on OK.
    - A call that does not return OK has changed nothing (a failed map has mapped nothing).
    - OUT_OF_MEMORY means that freeing memory and asking again may help; anything else will not.
    - `describe` gives the text of the last failure seen by the calling thread.
    - A function that the device lacks is NULL, and the capability that stands for it is not set.

Exactly one place turns a status into an exception: `_core/contract/raising.pyx`.
"""

from libc.stddef cimport size_t
from libc.stdint cimport uint32_t

from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, graph_t, node_t, stream_t)

ctypedef int status_t

cdef enum:
    TABLE_VERSION = 1

# --- written by `make generate` from _core/contract/operations.py ---
cdef enum:
    OK = 0
    OUT_OF_MEMORY = 1       # the device has no room for this now
    NOT_READY = 2           # an event or stream still has work; only event_query and stream_query say so
    UNSUPPORTED = 3         # this device cannot do that
    INVALID = 4             # a handle or address that is not, or no longer, one of this device's
    DEVICE_ERROR = 5        # the driver said no; `describe` has its words

cdef enum:                  # capabilities
    CAN_VIRTUAL = 1         # reserve, create, map, unmap: expandable segments
    CAN_EVENTS = 2          # streams run on their own; events tell when
    CAN_CAPTURE = 4         # streams can be captured into graphs, and these run again
    CAN_PEERS = 8           # other devices can be given access
    CAN_SHARE = 16          # memory can be handed to another process
    CAN_COPY = 32
    CAN_PINNED = 64
    IS_HOST = 128           # addresses can be read and written by this process
    CAN_STREAM_ORDERED = 256  # has a pool of its own, which gives and takes memory in stream order
    IS_RECORDED = 512       # addresses are a recording's: ranges may overlap, since their lengths are not recorded
    IS_UNCHECKED = 1024     # naming a stream that others made, and have destroyed, may crash

ctypedef enum share_t:      # how a piece of memory travels to another process
    SHARE_IPC = 0           # opaque 64 bytes, made from a plain segment
    SHARE_DESCRIPTOR = 1    # a file descriptor (4 bytes), made from a chunk
    SHARE_FABRIC = 2        # opaque 64 bytes, made from a chunk

cdef enum Operation:        # the place of each in the table
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
    void* self

    # Plain memory: the only part every device has. `stream` is the stream of the request, for devices that care.
    # segment_free waits for work that was submitted before and may still touch the segment, as a driver's free does.
    status_t (*segment_allocate)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*segment_free)(void* self, address_t address, bytes_t size) noexcept nogil

    # Virtual memory: addresses (ranges) apart from physical memory (chunks). One chunk may be mapped at several
    # addresses at once. A fresh mapping is out of reach until access is set; the device's own access is set with its
    # own index.
    status_t (*range_reserve)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*range_release)(void* self, address_t address, bytes_t size) noexcept nogil
    status_t (*chunk_create)(void* self, bytes_t size, chunk_t* chunk) noexcept nogil
    status_t (*chunk_release)(void* self, chunk_t chunk, bytes_t size) noexcept nogil
    status_t (*map)(void* self, address_t address, bytes_t size, chunk_t chunk) noexcept nogil
    status_t (*unmap)(void* self, address_t address, bytes_t size) noexcept nogil
    status_t (*set_access)(void* self, address_t address, bytes_t size, device_t device) noexcept nogil
    status_t (*granularity)(void* self, bytes_t* size) noexcept nogil

    # Making streams. stream_destroy makes the handle INVALID for every later call. event_record alone may still take
    # it: the event is then done when what the stream was given is. Memory that such a stream uses can so be freed
    # without waiting; with a device that refuses, the whole device is waited for.
    status_t (*stream_create)(void* self, stream_t* stream) noexcept nogil
    status_t (*stream_destroy)(void* self, stream_t stream) noexcept nogil

    # Streams and events: without them all work counts as finished when it was submitted.
    status_t (*stream_query)(void* self, stream_t stream) noexcept nogil
    status_t (*stream_synchronize)(void* self, stream_t stream) noexcept nogil
    status_t (*stream_wait)(void* self, stream_t stream, event_t event) noexcept nogil
    status_t (*device_synchronize)(void* self) noexcept nogil
    status_t (*event_create)(void* self, event_t* event) noexcept nogil
    status_t (*event_destroy)(void* self, event_t event) noexcept nogil
    status_t (*event_record)(void* self, event_t event, stream_t stream) noexcept nogil
    status_t (*event_query)(void* self, event_t event) noexcept nogil
    status_t (*event_synchronize)(void* self, event_t event) noexcept nogil

    # Events for other processes. An event made by shared_event_create is used like any other. Imported, it stands for
    # what its owner has last recorded in it.
    status_t (*shared_event_create)(void* self, event_t* event) noexcept nogil
    status_t (*event_export)(void* self, event_t event, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
    status_t (*event_import)(void* self, const unsigned char* handle, size_t length, event_t* event) noexcept nogil

    # Graph capture. `capture` is 0 when the stream is not being captured. capture_terminals and node_predecessors
    # write at most `capacity` nodes and set `count` to how many there are. capture_relaxed swaps the calling thread's
    # capture strictness, so that a device malloc is allowed. A graph belongs to the caller from capture_end to
    # graph_destroy; one that is destroyed while it runs still runs to its end.
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

    # How much memory there is.
    status_t (*memory_info)(void* self, bytes_t* free, bytes_t* total) noexcept nogil

    # Errors that stick.
    status_t (*clear_error)(void* self) noexcept nogil

    # What a failure was. The text of the last failure that the calling thread saw: at most `capacity` bytes; returns
    # how many.
    size_t (*describe)(void* self, char* text, size_t capacity) noexcept nogil

    # Copies. In stream order; `destination_device` and `source_device` may differ from this one.
    status_t (*copy)(void* self, address_t destination, address_t source, bytes_t size, device_t destination_device,
                     device_t source_device, stream_t stream) noexcept nogil

    # Other devices. Chunks are opened to another device by set_access.
    status_t (*peer_enable)(void* self, device_t other) noexcept nogil

    # Sharing plain memory with another process. A handle of 4 bytes is a file descriptor, which the device keeps open
    # as long as the segment; to import it, the other process passes a descriptor of its own for the same file, and
    # may close it afterwards. Any other length is opaque. Exported again, a segment has the same handle.
    status_t (*segment_export)(void* self, address_t base, unsigned char* handle, size_t capacity,
                               size_t* length) noexcept nogil
    status_t (*segment_import)(void* self, const unsigned char* handle, size_t length, address_t* base) noexcept nogil
    status_t (*segment_close)(void* self, address_t base) noexcept nogil

    # Sharing chunks with another process. Exported again, a chunk has the same handle. A descriptor is the device's,
    # and open until chunk_release; to import it, the other process passes one of its own for the same file, and may
    # close it afterwards.
    status_t (*chunk_export)(void* self, chunk_t chunk, share_t kind, unsigned char* handle, size_t capacity,
                             size_t* length) noexcept nogil
    status_t (*chunk_import)(void* self, share_t kind, const unsigned char* handle, size_t length, bytes_t size,
                             chunk_t* chunk) noexcept nogil

    # Host memory that the device can reach quickly.
    status_t (*pinned_allocate)(void* self, bytes_t size, address_t* address) noexcept nogil
    status_t (*pinned_free)(void* self, address_t address) noexcept nogil

    # A stream-ordered pool that the device itself keeps. Set up by the first call. What is freed on a stream may be
    # handed out again on that stream at once, and on others once that stream has come so far. On a stream that is
    # being captured both are nodes of the graph: what was allocated inside may be freed there, or outside once the
    # graph has run; what was allocated outside cannot be freed inside. Usage is of the pool alone, not of graphs:
    # what is in use, what the pool holds of the device, and the most of either since ordered_reset_high.
    status_t (*ordered_allocate)(void* self, bytes_t size, stream_t stream, address_t* address) noexcept nogil
    status_t (*ordered_free)(void* self, address_t address, stream_t stream) noexcept nogil
    status_t (*ordered_trim)(void* self, bytes_t keep) noexcept nogil
    status_t (*ordered_usage)(void* self, bytes_t* used, bytes_t* used_high, bytes_t* reserved,
                              bytes_t* reserved_high) noexcept nogil
    status_t (*ordered_reset_high)(void* self) noexcept nogil
    status_t (*ordered_access)(void* self, device_t device) noexcept nogil

# --- end of what is generated ---

# The functions of the table as an array: where the one at a place stands.
cdef inline void** entry(const DeviceTable* table, int place) noexcept nogil:
    return <void**> &table.segment_allocate + place


cdef class Device:
    """What every device is to Python: the owner of one filled-in table.

    The table lives as long as this object; an allocator holds a reference to it. Subclasses fill in
    `table` in `__cinit__` and never change it afterwards.
    """
    cdef DeviceTable table
    cdef object __weakref__
    cdef str name                   # which device: "cuda:1"
    cdef str family                 # what kind of device: "cuda"; what others may conclude from is this, not the name
