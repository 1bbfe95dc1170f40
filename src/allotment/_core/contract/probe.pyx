"""Calls each function of a device's contract table from Python: for contract tests and for tools.

Arguments go through as they are given, so a test can also hand over what the engine never would. Each call
runs without the interpreter lock, as the engine's own calls do.
"""

import enum

from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stddef cimport size_t
from libc.stdint cimport uint64_t
from libc.stdlib cimport free, malloc

from allotment._core.contract cimport table as contract
from allotment._core.contract.raising cimport described
from allotment._core.contract.table cimport NOT_READY, OK, UNSUPPORTED, Device, DeviceTable, share_t, status_t
from allotment._core.contract.types cimport (
    address_t, bytes_t, capture_t, chunk_t, device_t, event_t, node_t, stream_t)

from allotment.errors import UnsupportedError


class Status(enum.IntEnum):
    """What a call of the contract can answer."""

    OK = contract.OK
    OUT_OF_MEMORY = contract.OUT_OF_MEMORY
    NOT_READY = contract.NOT_READY
    UNSUPPORTED = contract.UNSUPPORTED
    INVALID = contract.INVALID
    DEVICE_ERROR = contract.DEVICE_ERROR


class Capability(enum.IntFlag):
    """What a device can say that it can do."""

    VIRTUAL = contract.CAN_VIRTUAL
    EVENTS = contract.CAN_EVENTS
    CAPTURE = contract.CAN_CAPTURE
    PEERS = contract.CAN_PEERS
    SHARE = contract.CAN_SHARE
    COPY = contract.CAN_COPY
    PINNED = contract.CAN_PINNED
    HOST = contract.IS_HOST
    STREAM_ORDERED = contract.CAN_STREAM_ORDERED


class Share(enum.IntEnum):
    """How a piece of memory travels to another process."""

    IPC = contract.SHARE_IPC
    DESCRIPTOR = contract.SHARE_DESCRIPTOR
    FABRIC = contract.SHARE_FABRIC


class StatusError(Exception):
    """A call of the contract did not answer OK: `status`, `operation`, and the device's own words in `text`."""

    def __init__(self, status, operation, text):
        super().__init__(f"{operation}: {status.name}" + (f" ({text})" if text else ""))
        self.status = status
        self.operation = operation
        self.text = text


# In the order of the table, which is walked as an array of pointers.
OPERATIONS = (
    "segment_allocate", "segment_free",
    "range_reserve", "range_release", "chunk_create", "chunk_release", "map", "unmap", "set_access", "granularity",
    "stream_create", "stream_destroy", "stream_query", "stream_synchronize", "stream_wait", "device_synchronize",
    "event_create", "event_destroy", "event_record", "event_query", "event_synchronize",
    "capture_begin", "capture_end", "capture_status", "capture_terminals", "node_predecessors", "capture_relaxed",
    "memory_info", "clear_error", "describe",
    "copy", "peer_enable", "segment_export", "segment_import", "segment_close", "chunk_export", "chunk_import",
    "pinned_allocate", "pinned_free",
    "ordered_allocate", "ordered_free", "ordered_trim", "ordered_usage", "ordered_reset_high", "ordered_access",
)

cdef enum:
    HANDLE_CAPACITY = 256

# What an out-parameter holds before a call; no device answers with it.
cdef uint64_t UNWRITTEN = <uint64_t> 0xA110_CA7E_DEAD_BEEF

ctypedef status_t (*list_nodes_t)(void* self, uint64_t of, node_t* nodes, size_t capacity,
                                  size_t* count) noexcept nogil


cdef class Probe:
    cdef readonly Device device
    cdef DeviceTable* table
    cdef readonly object operations

    def __cinit__(self, Device device not None):
        self.device = device
        self.table = &device.table
        cdef void** entries = <void**> &self.table.segment_allocate
        cdef size_t count = (<char*> self.table + sizeof(DeviceTable) - <char*> entries) // sizeof(void*)
        assert count == <size_t> len(OPERATIONS), "the list of operations differs from the table"
        self.operations = frozenset(name for at, name in enumerate(OPERATIONS) if has_entry(entries, at))

    def __repr__(self):
        return f"Probe({self.device!r})"

    @property
    def capabilities(self):
        return Capability(self.table.capabilities)

    cdef int require(self, str operation) except -1:
        if operation not in self.operations:
            raise UnsupportedError(f"{self.device.name} has no {operation}", operation=operation, status=UNSUPPORTED)
        return 0

    cdef int check(self, status_t status, str operation, uint64_t out=UNWRITTEN) except -1:
        if status == OK:
            return 0
        if out != UNWRITTEN:
            raise AssertionError(f"{operation} answered {Status(status).name} and yet wrote its result")
        raise StatusError(Status(status), operation, described(self.table))

    cdef bint is_ready(self, status_t status, str operation) except? True:
        if status == NOT_READY:
            return False
        self.check(status, operation)
        return True

    # Plain memory.

    def segment_allocate(self, bytes_t size, stream_t stream=0):
        cdef address_t address = UNWRITTEN
        cdef status_t status
        self.require("segment_allocate")
        with nogil:
            status = self.table.segment_allocate(self.table.self, size, stream, &address)
        self.check(status, "segment_allocate", address)
        return address

    def segment_free(self, address_t address, bytes_t size):
        cdef status_t status
        self.require("segment_free")
        with nogil:
            status = self.table.segment_free(self.table.self, address, size)
        self.check(status, "segment_free")

    # Virtual memory.

    def range_reserve(self, bytes_t size, stream_t stream=0):
        cdef address_t address = UNWRITTEN
        cdef status_t status
        self.require("range_reserve")
        with nogil:
            status = self.table.range_reserve(self.table.self, size, stream, &address)
        self.check(status, "range_reserve", address)
        return address

    def range_release(self, address_t address, bytes_t size):
        cdef status_t status
        self.require("range_release")
        with nogil:
            status = self.table.range_release(self.table.self, address, size)
        self.check(status, "range_release")

    def chunk_create(self, bytes_t size):
        cdef chunk_t chunk = UNWRITTEN
        cdef status_t status
        self.require("chunk_create")
        with nogil:
            status = self.table.chunk_create(self.table.self, size, &chunk)
        self.check(status, "chunk_create", chunk)
        return chunk

    def chunk_release(self, chunk_t chunk, bytes_t size):
        cdef status_t status
        self.require("chunk_release")
        with nogil:
            status = self.table.chunk_release(self.table.self, chunk, size)
        self.check(status, "chunk_release")

    def map(self, address_t address, bytes_t size, chunk_t chunk):
        cdef status_t status
        self.require("map")
        with nogil:
            status = self.table.map(self.table.self, address, size, chunk)
        self.check(status, "map")

    def unmap(self, address_t address, bytes_t size):
        cdef status_t status
        self.require("unmap")
        with nogil:
            status = self.table.unmap(self.table.self, address, size)
        self.check(status, "unmap")

    def set_access(self, address_t address, bytes_t size, device_t device):
        cdef status_t status
        self.require("set_access")
        with nogil:
            status = self.table.set_access(self.table.self, address, size, device)
        self.check(status, "set_access")

    def granularity(self):
        cdef bytes_t size = UNWRITTEN
        cdef status_t status
        self.require("granularity")
        with nogil:
            status = self.table.granularity(self.table.self, &size)
        self.check(status, "granularity", size)
        return size

    # Streams and events.

    def stream_create(self):
        cdef stream_t stream = UNWRITTEN
        cdef status_t status
        self.require("stream_create")
        with nogil:
            status = self.table.stream_create(self.table.self, &stream)
        self.check(status, "stream_create", stream)
        return stream

    def stream_destroy(self, stream_t stream):
        cdef status_t status
        self.require("stream_destroy")
        with nogil:
            status = self.table.stream_destroy(self.table.self, stream)
        self.check(status, "stream_destroy")

    def stream_query(self, stream_t stream):
        cdef status_t status
        self.require("stream_query")
        with nogil:
            status = self.table.stream_query(self.table.self, stream)
        return self.is_ready(status, "stream_query")

    def stream_synchronize(self, stream_t stream):
        cdef status_t status
        self.require("stream_synchronize")
        with nogil:
            status = self.table.stream_synchronize(self.table.self, stream)
        self.check(status, "stream_synchronize")

    def stream_wait(self, stream_t stream, event_t event):
        cdef status_t status
        self.require("stream_wait")
        with nogil:
            status = self.table.stream_wait(self.table.self, stream, event)
        self.check(status, "stream_wait")

    def device_synchronize(self):
        cdef status_t status
        self.require("device_synchronize")
        with nogil:
            status = self.table.device_synchronize(self.table.self)
        self.check(status, "device_synchronize")

    def event_create(self):
        cdef event_t event = UNWRITTEN
        cdef status_t status
        self.require("event_create")
        with nogil:
            status = self.table.event_create(self.table.self, &event)
        self.check(status, "event_create", event)
        return event

    def event_destroy(self, event_t event):
        cdef status_t status
        self.require("event_destroy")
        with nogil:
            status = self.table.event_destroy(self.table.self, event)
        self.check(status, "event_destroy")

    def event_record(self, event_t event, stream_t stream):
        cdef status_t status
        self.require("event_record")
        with nogil:
            status = self.table.event_record(self.table.self, event, stream)
        self.check(status, "event_record")

    def event_query(self, event_t event):
        cdef status_t status
        self.require("event_query")
        with nogil:
            status = self.table.event_query(self.table.self, event)
        return self.is_ready(status, "event_query")

    def event_synchronize(self, event_t event):
        cdef status_t status
        self.require("event_synchronize")
        with nogil:
            status = self.table.event_synchronize(self.table.self, event)
        self.check(status, "event_synchronize")

    # Graph capture.

    def capture_begin(self, stream_t stream):
        cdef capture_t capture = UNWRITTEN
        cdef status_t status
        self.require("capture_begin")
        with nogil:
            status = self.table.capture_begin(self.table.self, stream, &capture)
        self.check(status, "capture_begin", capture)
        return capture

    def capture_end(self, stream_t stream):
        cdef void* graph = <void*> UNWRITTEN
        cdef status_t status
        self.require("capture_end")
        with nogil:
            status = self.table.capture_end(self.table.self, stream, &graph)
        self.check(status, "capture_end", <uint64_t> graph)
        return <uint64_t> graph

    def capture_status(self, stream_t stream):
        cdef capture_t capture = UNWRITTEN
        cdef status_t status
        self.require("capture_status")
        with nogil:
            status = self.table.capture_status(self.table.self, stream, &capture)
        self.check(status, "capture_status", capture)
        return capture

    def capture_terminals(self, stream_t stream):
        self.require("capture_terminals")
        return self.nodes("capture_terminals", <list_nodes_t> self.table.capture_terminals, stream)

    def node_predecessors(self, node_t node):
        self.require("node_predecessors")
        return self.nodes("node_predecessors", <list_nodes_t> self.table.node_predecessors, node)

    cdef tuple nodes(self, str operation, list_nodes_t list_nodes, uint64_t of):
        # Starts from no room at all: that a device counts what it cannot write is part of the contract.
        cdef size_t capacity = 0
        cdef size_t count
        cdef node_t* found = NULL
        cdef status_t status
        while True:
            count = <size_t> UNWRITTEN
            with nogil:
                status = list_nodes(self.table.self, of, found, capacity, &count)
            try:
                self.check(status, operation, count)
                if count <= capacity:
                    return tuple([found[at] for at in range(count)])
            finally:
                free(found)
            capacity = count
            found = <node_t*> malloc(capacity * sizeof(node_t))
            if found == NULL:
                raise MemoryError(f"{operation} says that there are {count} nodes")

    def capture_relaxed(self, bint relaxed):
        cdef status_t status
        self.require("capture_relaxed")
        with nogil:
            status = self.table.capture_relaxed(self.table.self, relaxed)
        self.check(status, "capture_relaxed")

    # The device as a whole.

    def memory_info(self):
        cdef bytes_t free_bytes = UNWRITTEN, total_bytes = UNWRITTEN
        cdef status_t status
        self.require("memory_info")
        with nogil:
            status = self.table.memory_info(self.table.self, &free_bytes, &total_bytes)
        self.check(status, "memory_info", free_bytes)
        return free_bytes, total_bytes

    def clear_error(self):
        cdef status_t status
        self.require("clear_error")
        with nogil:
            status = self.table.clear_error(self.table.self)
        self.check(status, "clear_error")

    def describe(self):
        self.require("describe")
        return described(self.table)

    # Moving and sharing.

    def copy(self, address_t destination, address_t source, bytes_t size, device_t source_device, stream_t stream=0):
        cdef status_t status
        self.require("copy")
        with nogil:
            status = self.table.copy(self.table.self, destination, source, size, source_device, stream)
        self.check(status, "copy")

    def peer_enable(self, device_t other):
        cdef status_t status
        self.require("peer_enable")
        with nogil:
            status = self.table.peer_enable(self.table.self, other)
        self.check(status, "peer_enable")

    def segment_export(self, address_t base):
        cdef unsigned char[HANDLE_CAPACITY] handle
        cdef size_t length = <size_t> UNWRITTEN
        cdef status_t status
        self.require("segment_export")
        with nogil:
            status = self.table.segment_export(self.table.self, base, handle, HANDLE_CAPACITY, &length)
        self.check(status, "segment_export", length)
        return PyBytes_FromStringAndSize(<char*> handle, length)

    def segment_import(self, bytes handle not None):
        cdef address_t base = UNWRITTEN
        cdef const unsigned char* data = handle
        cdef size_t length = len(handle)
        cdef status_t status
        self.require("segment_import")
        with nogil:
            status = self.table.segment_import(self.table.self, data, length, &base)
        self.check(status, "segment_import", base)
        return base

    def segment_close(self, address_t base):
        cdef status_t status
        self.require("segment_close")
        with nogil:
            status = self.table.segment_close(self.table.self, base)
        self.check(status, "segment_close")

    def chunk_export(self, chunk_t chunk, int kind):
        cdef unsigned char[HANDLE_CAPACITY] handle
        cdef size_t length = <size_t> UNWRITTEN
        cdef status_t status
        self.require("chunk_export")
        with nogil:
            status = self.table.chunk_export(self.table.self, chunk, <share_t> kind, handle, HANDLE_CAPACITY, &length)
        self.check(status, "chunk_export", length)
        return PyBytes_FromStringAndSize(<char*> handle, length)

    def chunk_import(self, int kind, bytes handle not None, bytes_t size):
        cdef chunk_t chunk = UNWRITTEN
        cdef const unsigned char* data = handle
        cdef size_t length = len(handle)
        cdef status_t status
        self.require("chunk_import")
        with nogil:
            status = self.table.chunk_import(self.table.self, <share_t> kind, data, length, size, &chunk)
        self.check(status, "chunk_import", chunk)
        return chunk

    def pinned_allocate(self, bytes_t size):
        cdef address_t address = UNWRITTEN
        cdef status_t status
        self.require("pinned_allocate")
        with nogil:
            status = self.table.pinned_allocate(self.table.self, size, &address)
        self.check(status, "pinned_allocate", address)
        return address

    def pinned_free(self, address_t address):
        cdef status_t status
        self.require("pinned_free")
        with nogil:
            status = self.table.pinned_free(self.table.self, address)
        self.check(status, "pinned_free")

    # The device's own stream-ordered pool.

    def ordered_allocate(self, bytes_t size, stream_t stream=0):
        cdef address_t address = UNWRITTEN
        cdef status_t status
        self.require("ordered_allocate")
        with nogil:
            status = self.table.ordered_allocate(self.table.self, size, stream, &address)
        self.check(status, "ordered_allocate", address)
        return address

    def ordered_free(self, address_t address, stream_t stream=0):
        cdef status_t status
        self.require("ordered_free")
        with nogil:
            status = self.table.ordered_free(self.table.self, address, stream)
        self.check(status, "ordered_free")

    def ordered_trim(self, bytes_t keep=0):
        cdef status_t status
        self.require("ordered_trim")
        with nogil:
            status = self.table.ordered_trim(self.table.self, keep)
        self.check(status, "ordered_trim")

    def ordered_usage(self):
        cdef bytes_t used = UNWRITTEN, used_high = UNWRITTEN, reserved = UNWRITTEN, reserved_high = UNWRITTEN
        cdef status_t status
        self.require("ordered_usage")
        with nogil:
            status = self.table.ordered_usage(self.table.self, &used, &used_high, &reserved, &reserved_high)
        self.check(status, "ordered_usage", used)
        return used, used_high, reserved, reserved_high

    def ordered_reset_high(self):
        cdef status_t status
        self.require("ordered_reset_high")
        with nogil:
            status = self.table.ordered_reset_high(self.table.self)
        self.check(status, "ordered_reset_high")

    def ordered_access(self, device_t device):
        cdef status_t status
        self.require("ordered_access")
        with nogil:
            status = self.table.ordered_access(self.table.self, device)
        self.check(status, "ordered_access")


cdef inline bint has_entry(void** entries, size_t at) noexcept:
    return entries[at] != NULL
