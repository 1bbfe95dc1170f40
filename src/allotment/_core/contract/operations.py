"""The contract as data: the only list of a device's operations.

To add an operation, add an entry below. At run time the entries provide

    the methods of the probe, the methods that a class written in Python may define, the names that simulated devices
    use to refuse and count calls, the set of failures that are the fault of a stream

and `make generate` writes from them into the sources

    the table's struct and constants (table.pxd), the functions that call a Python method (trampolines.pyx),
    the methods of `allotment.Backend` (methods.py), the map of operations in docs/writing-a-backend.md

The code behind each operation is written by hand, in each device.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

# `make generate` copies the lines of these three enumerations with their comments.


class Status(enum.IntEnum):
    """Return value of a contract call."""

    OK = 0
    OUT_OF_MEMORY = 1  # the device has no room for this now
    NOT_READY = 2  # an event or stream still has work; returned only by event_query and stream_query
    UNSUPPORTED = 3  # this device cannot do that
    INVALID = 4  # a handle or address that is not, or no longer, valid on this device
    DEVICE_ERROR = 5  # the driver failed; `describe` has its text


class Capability(enum.IntFlag):
    """Capabilities that a device can claim."""

    VIRTUAL = 1  # reserve, create, map, unmap: expandable segments
    EVENTS = 2  # streams run asynchronously; events tell when they are done
    CAPTURE = 4  # streams can be captured into graphs, which can be launched again
    PEERS = 8  # other devices can get access
    SHARE = 16  # another process can open the memory
    COPY = 32
    PINNED = 64
    HOST = 128  # this process can read and write the addresses
    STREAM_ORDERED = 256  # has its own pool, which allocates and frees in stream order
    RECORDED = 512  # addresses come from a recording: ranges may overlap, since their lengths are not recorded
    UNCHECKED = 1024  # using a stream that other code created and destroyed may crash


class Share(enum.IntEnum):
    """How a piece of memory travels to another process."""

    IPC = 0  # opaque 64 bytes, made from a plain segment
    DESCRIPTOR = 1  # a file descriptor (4 bytes), made from a chunk
    FABRIC = 2  # opaque 64 bytes, made from a chunk


class Role(NamedTuple):
    """Meaning of a number."""

    c_type: str
    meaning: str
    python: str = "int"


ROLES = {
    "bytes": Role("bytes_t", "a number of bytes"),
    "address": Role("address_t", "an address"),
    "stream": Role("stream_t", "a stream"),
    "event": Role("event_t", "an event"),
    "chunk": Role("chunk_t", "a chunk"),
    "capture": Role("capture_t", "a capture"),
    "graph": Role("graph_t", "a graph"),
    "node": Role("node_t", "a node"),
    "device": Role("device_t", "the index of a device"),
    "share": Role("share_t", "a way of sharing"),
    "flag": Role("bint", "yes or no", "bool"),
    # In C, these are more than one number each: see `make generate`.
    "data": Role("", "bytes", "bytes"),
    "nodes": Role("", "nodes", "Iterable[int]"),
    "ready": Role("", "True or False", "bool"),
}


class Value(NamedTuple):
    """A parameter, or a part of the result."""

    role: str
    name: str
    may_be_zero: bool = False


@dataclass(frozen=True)
class Operation:
    """One function of the table.

    `takes` and `gives` are lists of "role name". A role that ends in "?" marks a result that may be 0; elsewhere 0
    means "none" and the caller refuses it. In Python, a result of several numbers is a tuple.
    """

    name: str
    takes: str
    gives: str
    doc: str
    method: str = ""
    """Method name in a class written in Python, where it differs."""
    finds_memory: bool = False
    """Whether success shows that the device has room again."""
    reader: str = ""
    """Function that reads a method's result, where the roles of the results do not say enough."""
    is_special: bool = False
    """Whether its C signature, probe and trampoline are written by hand."""

    @property
    def parameters(self) -> tuple[Value, ...]:
        return read_values(self.takes)

    @property
    def results(self) -> tuple[Value, ...]:
        return read_values(self.gives)

    @property
    def python_name(self) -> str:
        return self.method or self.name

    @property
    def is_fault_of_stream(self) -> bool:
        """Whether a stream is the only handle here that a user passed: events, chunks and graphs are the engine's."""
        roles = {value.role for value in self.parameters}
        return "stream" in roles and "address" not in roles


def read_values(text: str) -> tuple[Value, ...]:
    pairs = (item.split() for item in text.split(",") if item)
    return tuple(Value(role.removesuffix("?"), name, role.endswith("?")) for role, name in pairs)


@dataclass(frozen=True)
class Group:
    """Operations that a device has all or none of, since half of them would be useless."""

    title: str
    contract: str
    """What the functions mean to the device behind the table; becomes a comment there."""
    does: str
    """What an allocator uses them for."""
    without: str
    """What an allocator does without them."""
    operations: tuple[Operation, ...]
    capability: Capability | None = None
    is_required: bool = False


GROUPS = (
    Group(
        "Plain memory: the only part every device has",
        "`stream` is the stream of the request, for devices that need it. segment_free waits for work that was"
        " submitted before and may still touch the segment, as a driver's free does.",
        "everything",
        "no device",
        (
            Operation(
                "segment_allocate", "bytes size, stream stream", "address address",
                "Return the address of `size` new bytes. `stream` is the stream that first uses them.\n\n"
                "The address is a multiple of 16 below 2**63. The allocator cuts blocks at multiples of 512 from it,\n"
                "so your alignment is the alignment that blocks get.",
                method="allocate", finds_memory=True,
            ),
            Operation(
                "segment_free", "address address, bytes size", "",
                "Free all memory at an address that `allocate` returned. Raise AddressError the second time.",
                method="free",
            ),
        ),
        is_required=True,
    ),
    Group(
        "Virtual memory: addresses (ranges) apart from physical memory (chunks)",
        "One chunk may be mapped at several addresses at once. A new mapping is inaccessible until access is set; the"
        " device's own access is set with its own index.",
        "`expandable_segments:True`: segments that grow and shrink in place, which avoids fragmentation",
        "plain segments only",
        (
            Operation(
                "range_reserve", "bytes size, stream stream", "address address",
                "Return the address of `size` bytes of address space, with no memory mapped.",
            ),
            Operation(
                "range_release", "address address, bytes size", "",
                "Release a whole range. Nothing is mapped in it any more.",
            ),
            Operation(
                "chunk_create", "bytes size", "chunk chunk",
                "Return a handle of `size` bytes of physical memory that have no address yet.", finds_memory=True,
            ),
            Operation(
                "chunk_release", "chunk chunk, bytes size", "",
                "Release the handle. The memory is freed with its last mapping.",
            ),
            Operation(
                "map", "address address, bytes size, chunk chunk", "",
                "Map a whole chunk at an address inside a range. One chunk may be mapped at several addresses.",
            ),
            Operation("unmap", "address address, bytes size", "", "Unmap whole mappings."),
            Operation(
                "set_access", "address address, bytes size, device device", "",
                "Let a device (this one, by its own index) access the mappings there.",
            ),
            Operation(
                "granularity", "", "bytes size", "Return the unit of ranges, chunks and addresses of mappings.",
            ),
        ),
        Capability.VIRTUAL,
    ),
    Group(
        "Creating streams",
        "stream_destroy makes the handle INVALID for every later call, except that event_record may still accept it:"
        " the event is then done when the work submitted to the stream is done. That lets memory used by such a stream"
        " be freed without waiting; if the device refuses the handle, the engine synchronizes the whole device.",
        "streams created through the allocator",
        "streams are created elsewhere and passed as numbers",
        (
            Operation("stream_create", "", "stream stream", "Return the handle of a new stream."),
            Operation(
                "stream_destroy", "stream stream", "",
                "From now on every method that takes this handle raises StreamError. Only `event_record` may still\n"
                "accept it, for an event that is done when the work submitted to the stream is done.",
            ),
        ),
    ),
    Group(
        "Streams and events: without them all work counts as finished once it is submitted",
        "",
        "reuses a block that other streams use when their work is done",
        "**every stream counts as finished at any time**: see below",
        (
            Operation(
                "stream_query", "stream stream", "ready ready",
                "Return whether all work submitted to the stream is done. Does not wait.",
            ),
            Operation("stream_synchronize", "stream stream", "", "Wait for all work submitted to the stream."),
            Operation(
                "stream_wait", "stream stream, event event", "",
                "Later work of the stream waits for the event; the caller does not.",
            ),
            Operation("device_synchronize", "", "", "Wait for all work of all streams."),
            Operation("event_create", "", "event event", "Return the handle of a new event."),
            Operation("event_destroy", "event event", "", "Destroy an event."),
            Operation(
                "event_record", "event event, stream stream", "",
                "Record the work submitted to the stream so far in the event. This replaces an earlier recording.",
            ),
            Operation(
                "event_query", "event event", "ready ready",
                "Return whether the event's work is done; True if it was never recorded. Does not wait.",
            ),
            Operation("event_synchronize", "event event", "", "Wait for the event's work."),
        ),
        Capability.EVENTS,
    ),
    Group(
        "Events for other processes",
        "An event from shared_event_create is used like any other. An imported event stands for what its owner recorded"
        " in it last.",
        "makes a stream of another process wait, on the device, for work that the owner submitted before it shared",
        "the process that opens a block waits on the host",
        (
            Operation("shared_event_create", "", "event event", "Return the handle of a new event to export."),
            Operation(
                "event_export", "event event", "data handle",
                "Return what another process needs to wait for the event; at most 64 bytes.",
            ),
            Operation("event_import", "data handle", "event event", "Return a handle of another process's event."),
        ),
    ),
    Group(
        "Graph capture",
        "`capture` is 0 when the stream is not being captured. capture_terminals and node_predecessors write at most"
        " `capacity` nodes and set `count` to the number that exists. capture_relaxed sets whether the calling thread"
        " may call device malloc during a capture. The caller owns a graph from capture_end to graph_destroy; a graph"
        " that is destroyed while it runs still runs to its end.",
        "`allotment.capture`: graphs, and private pools for their memory",
        "no capture",
        (
            Operation(
                "capture_begin", "stream stream", "capture capture",
                "Begin a capture; return its identity. Work given to the stream becomes graph nodes and does not run.",
            ),
            Operation(
                "capture_end", "stream stream", "graph graph",
                "End the capture and return the handle of its graph. The capture ends even if this fails.",
            ),
            Operation(
                "capture_status", "stream stream", "capture? capture",
                "Return the identity of the capture that the stream is in, 0 if none.",
            ),
            Operation(
                "capture_terminals", "stream stream", "nodes nodes",
                "Return the nodes that the stream's next node would depend on.",
            ),
            Operation("node_predecessors", "node node", "nodes nodes", "Return the nodes that a node depends on."),
            Operation(
                "capture_relaxed", "flag relaxed", "",
                "Set whether the calling thread may allocate while a stream is being captured.",
            ),
            Operation(
                "graph_launch", "graph graph, stream stream", "",
                "Submit the work of a graph to a stream. May be called any number of times; a capture may refuse it.",
            ),
            Operation("graph_destroy", "graph graph", "", "Destroy a graph."),
        ),
        Capability.CAPTURE,
    ),
    Group(
        "Amount of memory",
        "",
        "reports free memory in out-of-memory messages; accepts a fraction of the device's memory as a limit",
        "no figures for the device's memory",
        (
            Operation(
                "memory_info", "", "bytes? free, bytes? total", "Return the device's (free, total) bytes.",
                reader="free_and_total",
            ),
        ),
    ),
    Group(
        "Sticky errors",
        "",
        "called after a refused allocation, for devices that would report the refusal again",
        "nothing",
        (Operation("clear_error", "", "", "Clear a failure that the device would otherwise report again."),),
    ),
    Group(
        "Text of a failure",
        "Writes the text of the last failure that the calling thread saw: at most `capacity` bytes; returns how many.",
        "",
        "",
        (Operation("describe", "", "", "Return the text of this thread's last failure.", is_special=True),),
    ),
    Group(
        "Copies",
        "In stream order; `destination_device` and `source_device` may differ from this one.",
        "moving blocks",
        "no copies",
        (
            Operation(
                "copy",
                "address destination, address source, bytes size, device destination_device, device source_device,"
                " stream stream", "",
                "Copy in stream order; `destination` and `source` may be addresses of other devices.",
            ),
        ),
        Capability.COPY,
    ),
    Group(
        "Other devices",
        "set_access gives another device access to chunks.",
        "access for other devices",
        "none",
        (
            Operation(
                "peer_enable", "device other", "", "Let device number `other` access the plain memory of this one.",
            ),
        ),
        Capability.PEERS,
    ),
    Group(
        "Sharing plain memory with another process",
        "A handle of 4 bytes is a file descriptor, which the device keeps open as long as the segment. To import it,"
        " the other process passes a descriptor of its own for the same file, and may close it afterwards. A handle of"
        " any other length is opaque. Exporting a segment again returns the same handle.",
        "plain memory shared with other processes",
        "none",
        (
            Operation(
                "segment_export", "address base", "data handle",
                "Return what another process needs to open the segment: the same each time, at most 64 bytes.\n"
                "4 bytes are a file descriptor, which you own and keep open until the segment is freed.",
            ),
            Operation("segment_import", "data handle", "address base", "Open another process's segment: its address."),
            Operation("segment_close", "address base", "", "Close an imported segment."),
        ),
        Capability.SHARE,
    ),
    Group(
        "Sharing chunks with another process",
        "Exporting a chunk again returns the same handle. The device owns a descriptor and keeps it open until"
        " chunk_release. To import it, the other process passes one of its own for the same file, and may close it"
        " afterwards.",
        "expandable memory shared with other processes",
        "none",
        (
            Operation(
                "chunk_export", "chunk chunk, share kind", "data handle",
                "Return what another process needs to open the chunk, the same each time. `kind` is 1 for a\n"
                "descriptor, which you own and keep open until the chunk is released, 2 for a handle of 64 bytes.",
            ),
            Operation(
                "chunk_import", "share kind, data handle, bytes size", "chunk chunk",
                "Open another process's chunk: its handle here.",
            ),
        ),
        Capability.SHARE,
    ),
    Group(
        "Host memory that the device can reach quickly",
        "",
        "host memory that the device reaches quickly",
        "none",
        (
            Operation("pinned_allocate", "bytes size", "address address", "Return the address of `size` such bytes."),
            Operation("pinned_free", "address address", "", "Free what `pinned_allocate` returned."),
        ),
        Capability.PINNED,
    ),
    Group(
        "A stream-ordered pool that the device itself keeps",
        "The first call creates the pool. Memory freed on a stream may be reused on that stream at once, and on others"
        " once that stream has reached the free. On a stream that is being captured, both calls become nodes of the"
        " graph: memory allocated inside may be freed there, or outside once the graph has run; memory allocated"
        " outside cannot be freed inside. Usage counts the pool, not graphs: bytes in use, bytes that the pool holds,"
        " and the peak of either since ordered_reset_high.",
        "`backend:cudaMallocAsync`: [the device's own stream-ordered pool](driver-pool.md) replaces our cache;"
        " needs streams and events too",
        "our own cache only",
        (
            Operation(
                "ordered_allocate", "bytes size, stream stream", "address address",
                "Return the address of `size` bytes that later work on `stream` may use.", finds_memory=True,
            ),
            Operation(
                "ordered_free", "address address, stream stream", "",
                "Free what `ordered_allocate` returned, once the work submitted to `stream` so far is done.",
            ),
            Operation(
                "ordered_trim", "bytes keep", "",
                "Release unused memory until the pool holds at most `keep` bytes.",
            ),
            Operation(
                "ordered_usage", "", "bytes? used, bytes? used_high, bytes? reserved, bytes? reserved_high",
                "Return (bytes in use, their peak, bytes held, their peak).",
            ),
            Operation("ordered_reset_high", "", "", "Reset both peaks to the current values."),
            Operation("ordered_access", "device device", "", "Let the device of that index access the pool's memory."),
        ),
        Capability.STREAM_ORDERED,
    ),
)  # fmt: skip

OPERATIONS = tuple(operation for group in GROUPS for operation in group.operations)
"""Operations in the order of the table, whose functions form an array."""

STREAM_OPERATIONS = frozenset(operation.name for operation in OPERATIONS if operation.is_fault_of_stream)
