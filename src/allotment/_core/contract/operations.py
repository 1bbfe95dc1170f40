"""The contract as data: every operation of a device stands here, and only here.

One more operation is one more entry below. From the entries follow, at run time,

    the methods of the probe, what a class written in Python offers, the names that refusals and counts
    of simulated devices go by, which failures are the fault of a stream

and, written into the sources by `make generate`,

    the table's struct and constants (table.pxd), the functions that call a Python method (trampolines.pyx),
    the methods of `allotment.Backend` (methods.py), the map of operations in docs/writing-a-backend.md

What a device does when an operation is called is its own affair, and stays written by hand.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import NamedTuple

# `make generate` copies the lines of these three, with what is said behind them.


class Status(enum.IntEnum):
    """What a call of the contract returns."""

    OK = 0
    OUT_OF_MEMORY = 1  # the device has no room for this now
    NOT_READY = 2  # an event or stream still has work; only event_query and stream_query say so
    UNSUPPORTED = 3  # this device cannot do that
    INVALID = 4  # a handle or address that is not, or no longer, one of this device's
    DEVICE_ERROR = 5  # the driver said no; `describe` has its words


class Capability(enum.IntFlag):
    """What a device can say that it can do."""

    VIRTUAL = 1  # reserve, create, map, unmap: expandable segments
    EVENTS = 2  # streams run on their own; events tell when
    CAPTURE = 4  # streams can be captured into graphs, and these run again
    PEERS = 8  # other devices can be given access
    SHARE = 16  # memory can be handed to another process
    COPY = 32
    PINNED = 64
    HOST = 128  # addresses can be read and written by this process
    STREAM_ORDERED = 256  # has a pool of its own, which gives and takes memory in stream order
    RECORDED = 512  # addresses are a recording's: ranges may overlap, since their lengths are not recorded
    UNCHECKED = 1024  # naming a stream that others made, and have destroyed, may crash


class Share(enum.IntEnum):
    """How a piece of memory travels to another process."""

    IPC = 0  # opaque 64 bytes, made from a plain segment
    DESCRIPTOR = 1  # a file descriptor (4 bytes), made from a chunk
    FABRIC = 2  # opaque 64 bytes, made from a chunk


class Role(NamedTuple):
    """What a number means."""

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
    # These are not one number each in C: see `make generate`.
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

    `takes` and `gives` are lists of "role name"; a result whose role ends in "?" may be 0, which is else "none" and
    refused. A result of several numbers is a tuple in Python.
    """

    name: str
    takes: str
    gives: str
    doc: str
    method: str = ""
    """What it is called in a class written in Python, where that is not the same."""
    finds_memory: bool = False
    """Whether success means that there is room on the device after all."""
    reader: str = ""
    """What reads the result of a method, where the roles of the results do not say enough."""
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
        """Whether a stream is the only handle of a user's that it takes: events, chunks and graphs are our own."""
        roles = {value.role for value in self.parameters}
        return "stream" in roles and "address" not in roles


def read_values(text: str) -> tuple[Value, ...]:
    pairs = (item.split() for item in text.split(",") if item)
    return tuple(Value(role.removesuffix("?"), name, role.endswith("?")) for role, name in pairs)


@dataclass(frozen=True)
class Group:
    """Operations that a device has all or none of, since half of them is of no use."""

    title: str
    contract: str
    """What the functions mean to the device behind the table; a comment in it."""
    does: str
    """What an allocator does with them."""
    without: str
    """What is missing without them."""
    operations: tuple[Operation, ...]
    capability: Capability | None = None
    is_required: bool = False


GROUPS = (
    Group(
        "Plain memory: the only part every device has",
        "`stream` is the stream of the request, for devices that care. segment_free waits for work that was submitted"
        " before and may still touch the segment, as a driver's free does.",
        "everything",
        "no device",
        (
            Operation(
                "segment_allocate", "bytes size, stream stream", "address address",
                "Address of `size` new bytes. `stream` is where they are first wanted.\n\n"
                "A multiple of 16 below 2**63. Blocks are cut from them at multiples of 512, so what you align these\n"
                "to is what blocks get.",
                method="allocate", finds_memory=True,
            ),
            Operation(
                "segment_free", "address address, bytes size", "",
                "Give back what `allocate` returned, whole. A second time, or for anything else, raise AddressError.",
                method="free",
            ),
        ),
        is_required=True,
    ),
    Group(
        "Virtual memory: addresses (ranges) apart from physical memory (chunks)",
        "One chunk may be mapped at several addresses at once. A fresh mapping is out of reach until access is set; the"
        " device's own access is set with its own index.",
        "`expandable_segments:True`: segments that grow and shrink in place, so that memory does not end in pieces",
        "plain segments only",
        (
            Operation(
                "range_reserve", "bytes size, stream stream", "address address",
                "Address of `size` bytes of address space with nothing behind it.",
            ),
            Operation(
                "range_release", "address address, bytes size", "",
                "Give back a whole range; nothing is mapped in it any more.",
            ),
            Operation(
                "chunk_create", "bytes size", "chunk chunk",
                "Handle of `size` bytes of physical memory that have no address yet.", finds_memory=True,
            ),
            Operation(
                "chunk_release", "chunk chunk, bytes size", "",
                "Drop the handle; the memory goes when its last mapping does.",
            ),
            Operation(
                "map", "address address, bytes size, chunk chunk", "",
                "Put a whole chunk at an address inside a range. One chunk may be at several addresses at once.",
            ),
            Operation("unmap", "address address, bytes size", "", "Take away whole mappings."),
            Operation(
                "set_access", "address address, bytes size, device device", "",
                "Let a device (this one, by its own index) touch what is mapped there.",
            ),
            Operation(
                "granularity", "", "bytes size", "Ranges, chunks and addresses of mappings are multiples of this.",
            ),
        ),
        Capability.VIRTUAL,
    ),
    Group(
        "Making streams",
        "stream_destroy makes the handle INVALID for every later call. event_record alone may still take it: the event "
        "is then done when what the stream was given is. Memory that such a stream uses can so be freed without "
        "waiting; with a device that refuses, the whole device is waited for.",
        "streams made through the allocator",
        "streams come from elsewhere, as numbers",
        (
            Operation("stream_create", "", "stream stream", "Handle of a new stream."),
            Operation(
                "stream_destroy", "stream stream", "",
                "From now on the handle gets StreamError from every method that takes it. `event_record` may still\n"
                "take it, for an event that is done when what the stream was given is.",
            ),
        ),
    ),
    Group(
        "Streams and events: without them all work counts as finished when it was submitted",
        "",
        "a block that other streams use is reused when their work is done",
        "**every stream is taken to be finished at any time**: see below",
        (
            Operation(
                "stream_query", "stream stream", "ready ready",
                "Whether everything submitted to the stream is done. Does not wait.",
            ),
            Operation("stream_synchronize", "stream stream", "", "Wait for everything submitted to the stream."),
            Operation(
                "stream_wait", "stream stream, event event", "",
                "Later work of the stream waits for the event; the caller does not.",
            ),
            Operation("device_synchronize", "", "", "Wait for all work of all streams."),
            Operation("event_create", "", "event event", "Handle of a new event."),
            Operation("event_destroy", "event event", "", "Give an event up."),
            Operation(
                "event_record", "event event, stream stream", "",
                "The event stands for what the stream has been given so far. Recorded again, it forgets what it stood"
                " for.",
            ),
            Operation(
                "event_query", "event event", "ready ready",
                "Whether the event's work is done; also if it was never recorded. Does not wait.",
            ),
            Operation("event_synchronize", "event event", "", "Wait for the event's work."),
        ),
        Capability.EVENTS,
    ),
    Group(
        "Events for other processes",
        "An event made by shared_event_create is used like any other. Imported, it stands for what its owner has last"
        " recorded in it.",
        "a stream of another process waits, on the device, for what the owner's stream was given before it shared",
        "the process that opens a block waits itself",
        (
            Operation("shared_event_create", "", "event event", "Handle of a new event that can be exported."),
            Operation(
                "event_export", "event event", "data handle",
                "What another process needs to wait for the event; at most 64 bytes.",
            ),
            Operation("event_import", "data handle", "event event", "Handle of another process's event."),
        ),
    ),
    Group(
        "Graph capture",
        "`capture` is 0 when the stream is not being captured. capture_terminals and node_predecessors write at most"
        " `capacity` nodes and set `count` to how many there are. capture_relaxed swaps the calling thread's capture"
        " strictness, so that a device malloc is allowed. A graph belongs to the caller from capture_end to"
        " graph_destroy; one that is destroyed while it runs still runs to its end.",
        "`allotment.capture`: graphs, and private pools for their memory",
        "no capture",
        (
            Operation(
                "capture_begin", "stream stream", "capture capture",
                "Identity of a new capture: work given to the stream becomes nodes of a graph instead of running.",
            ),
            Operation(
                "capture_end", "stream stream", "graph graph",
                "Handle of the graph that the capture made. It has ended also if this fails.",
            ),
            Operation(
                "capture_status", "stream stream", "capture? capture",
                "Identity of the capture that the stream is in, 0 if none.",
            ),
            Operation(
                "capture_terminals", "stream stream", "nodes nodes",
                "The nodes that the stream's next node would depend on.",
            ),
            Operation("node_predecessors", "node node", "nodes nodes", "The nodes that a node directly depends on."),
            Operation(
                "capture_relaxed", "flag relaxed", "",
                "Whether the calling thread may allocate while a stream is being captured.",
            ),
            Operation(
                "graph_launch", "graph graph, stream stream", "",
                "Give the work of a graph to a stream, as often as one likes"
                " (a capture may refuse it).",
            ),
            Operation("graph_destroy", "graph graph", "", "Give a graph up."),
        ),
        Capability.CAPTURE,
    ),
    Group(
        "How much memory there is",
        "",
        "tells how much is free, in out-of-memory messages; fractions of the device's memory as a limit",
        "the figures are missing",
        (
            Operation(
                "memory_info", "", "bytes? free, bytes? total", "(free, total) bytes of the device.",
                reader="free_and_total",
            ),
        ),
    ),
    Group(
        "Errors that stick",
        "",
        "called after a refused allocation, for devices that would report the refusal once more",
        "nothing",
        (Operation("clear_error", "", "", "Forget a failure that the device would otherwise report again."),),
    ),
    Group(
        "What a failure was",
        "The text of the last failure that the calling thread saw: at most `capacity` bytes; returns how many.",
        "",
        "",
        (Operation("describe", "", "", "The device's words on this thread's last failure.", is_special=True),),
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
        "Chunks are opened to another device by set_access.",
        "access for other devices",
        "none",
        (
            Operation(
                "peer_enable", "device other", "", "Let device number `other` touch the plain memory of this one.",
            ),
        ),
        Capability.PEERS,
    ),
    Group(
        "Sharing plain memory with another process",
        "A handle of 4 bytes is a file descriptor, which the device keeps open as long as the segment; to import it,"
        " the other process passes a descriptor of its own for the same file, and may close it afterwards. Any other"
        " length is opaque. Exported again, a segment has the same handle.",
        "plain memory shared with other processes",
        "none",
        (
            Operation(
                "segment_export", "address base", "data handle",
                "What another process needs to open the segment: the same each time, at most 64 bytes. 4 bytes are a\n"
                "file descriptor, which stays yours and open until the segment is freed.",
            ),
            Operation("segment_import", "data handle", "address base", "Address of another process's segment."),
            Operation("segment_close", "address base", "", "Done with an imported segment."),
        ),
        Capability.SHARE,
    ),
    Group(
        "Sharing chunks with another process",
        "Exported again, a chunk has the same handle. A descriptor is the device's, and open until chunk_release; to"
        " import it, the other process passes one of its own for the same file, and may close it afterwards.",
        "expandable memory shared with other processes",
        "none",
        (
            Operation(
                "chunk_export", "chunk chunk, share kind", "data handle",
                "What another process needs to open the chunk, the same each time; `kind` is 1 for a descriptor,\n"
                "which stays yours and open until the chunk is released, 2 for a handle of 64 bytes.",
            ),
            Operation(
                "chunk_import", "share kind, data handle, bytes size", "chunk chunk",
                "Handle of another process's chunk.",
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
            Operation("pinned_allocate", "bytes size", "address address", "Address of `size` bytes of such memory."),
            Operation("pinned_free", "address address", "", "Give back what `pinned_allocate` returned."),
        ),
        Capability.PINNED,
    ),
    Group(
        "A stream-ordered pool that the device itself keeps",
        "Set up by the first call. What is freed on a stream may be handed out again on that stream at once, and on"
        " others once that stream has come so far. On a stream that is being captured both are nodes of the graph: what"
        " was allocated inside may be freed there, or outside once the graph has run; what was allocated outside cannot"
        " be freed inside. Usage is of the pool alone, not of graphs: what is in use, what the pool holds of the"
        " device, and the most of either since ordered_reset_high.",
        "`backend:cudaMallocAsync`: the device keeps a stream-ordered pool and"
        " [the allocator stands aside](driver-pool.md); needs streams and events too",
        "our own cache only",
        (
            Operation(
                "ordered_allocate", "bytes size, stream stream", "address address",
                "Address of `size` bytes that work on `stream` may use from now on.", finds_memory=True,
            ),
            Operation(
                "ordered_free", "address address, stream stream", "",
                "Take back what `ordered_allocate` gave, once `stream` has done what it was given so far.",
            ),
            Operation(
                "ordered_trim", "bytes keep", "",
                "Give unused memory back to the device until at most `keep` bytes are held.",
            ),
            Operation(
                "ordered_usage", "", "bytes? used, bytes? used_high, bytes? reserved, bytes? reserved_high",
                "(in use, the most in use, held, the most held), in bytes.",
            ),
            Operation("ordered_reset_high", "", "", "The two peaks start anew from what there is now."),
            Operation("ordered_access", "device device", "", "Let the device of that index touch the pool's memory."),
        ),
        Capability.STREAM_ORDERED,
    ),
)  # fmt: skip

OPERATIONS = tuple(operation for group in GROUPS for operation in group.operations)
"""In the order of the table, which can be walked as an array of functions."""

STREAM_OPERATIONS = frozenset(operation.name for operation in OPERATIONS if operation.is_fault_of_stream)
