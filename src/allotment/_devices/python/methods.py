# written by `make generate` from _core/contract/operations.py: do not edit
"""The methods that a device written in Python may define; one that it does not define is one it does not have."""

from __future__ import annotations

from collections.abc import Iterable

from allotment._core.contract.operations import Status
from allotment.errors import UnsupportedError


class Methods:
    __slots__ = ()
    name: str

    def _lacks(self, method: str) -> UnsupportedError:
        words = f"{self.name} does not define {method}"
        return UnsupportedError(words, operation=method, status=Status.UNSUPPORTED)

    # Plain memory: the only part every device has.

    def allocate(self, size: int, stream: int) -> int:
        """Address of `size` new bytes. `stream` is where they are first wanted.

        A multiple of 16 below 2**63. Blocks are cut from them at multiples of 512, so what you align these
        to is what blocks get.
        """
        raise self._lacks("allocate")

    def free(self, address: int, size: int) -> None:
        """Give back what `allocate` returned, whole. A second time, or for anything else, raise AddressError."""
        raise self._lacks("free")

    # Virtual memory: addresses (ranges) apart from physical memory (chunks) (all or none).

    def range_reserve(self, size: int, stream: int) -> int:
        """Address of `size` bytes of address space with nothing behind it."""
        raise self._lacks("range_reserve")

    def range_release(self, address: int, size: int) -> None:
        """Give back a whole range; nothing is mapped in it any more."""
        raise self._lacks("range_release")

    def chunk_create(self, size: int) -> int:
        """Handle of `size` bytes of physical memory that have no address yet."""
        raise self._lacks("chunk_create")

    def chunk_release(self, chunk: int, size: int) -> None:
        """Drop the handle; the memory goes when its last mapping does."""
        raise self._lacks("chunk_release")

    def map(self, address: int, size: int, chunk: int) -> None:
        """Put a whole chunk at an address inside a range. One chunk may be at several addresses at once."""
        raise self._lacks("map")

    def unmap(self, address: int, size: int) -> None:
        """Take away whole mappings."""
        raise self._lacks("unmap")

    def set_access(self, address: int, size: int, device: int) -> None:
        """Let a device (this one, by its own index) touch what is mapped there."""
        raise self._lacks("set_access")

    def granularity(self) -> int:
        """Ranges, chunks and addresses of mappings are multiples of this."""
        raise self._lacks("granularity")

    # Making streams (all or none).

    def stream_create(self) -> int:
        """Handle of a new stream."""
        raise self._lacks("stream_create")

    def stream_destroy(self, stream: int) -> None:
        """From now on the handle gets StreamError from every method that takes it. `event_record` may still
        take it, for an event that is done when what the stream was given is.
        """
        raise self._lacks("stream_destroy")

    # Streams and events: without them all work counts as finished when it was submitted (all or none).

    def stream_query(self, stream: int) -> bool:
        """Whether everything submitted to the stream is done. Does not wait."""
        raise self._lacks("stream_query")

    def stream_synchronize(self, stream: int) -> None:
        """Wait for everything submitted to the stream."""
        raise self._lacks("stream_synchronize")

    def stream_wait(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the event; the caller does not."""
        raise self._lacks("stream_wait")

    def device_synchronize(self) -> None:
        """Wait for all work of all streams."""
        raise self._lacks("device_synchronize")

    def event_create(self) -> int:
        """Handle of a new event."""
        raise self._lacks("event_create")

    def event_destroy(self, event: int) -> None:
        """Give an event up."""
        raise self._lacks("event_destroy")

    def event_record(self, event: int, stream: int) -> None:
        """The event stands for what the stream has been given so far. Recorded again, it forgets what it stood for."""
        raise self._lacks("event_record")

    def event_query(self, event: int) -> bool:
        """Whether the event's work is done; also if it was never recorded. Does not wait."""
        raise self._lacks("event_query")

    def event_synchronize(self, event: int) -> None:
        """Wait for the event's work."""
        raise self._lacks("event_synchronize")

    # Events for other processes (all or none).

    def shared_event_create(self) -> int:
        """Handle of a new event that can be exported."""
        raise self._lacks("shared_event_create")

    def event_export(self, event: int) -> bytes:
        """What another process needs to wait for the event; at most 64 bytes."""
        raise self._lacks("event_export")

    def event_import(self, handle: bytes) -> int:
        """Handle of another process's event."""
        raise self._lacks("event_import")

    # Graph capture (all or none).

    def capture_begin(self, stream: int) -> int:
        """Identity of a new capture: work given to the stream becomes nodes of a graph instead of running."""
        raise self._lacks("capture_begin")

    def capture_end(self, stream: int) -> int:
        """Handle of the graph that the capture made. It has ended also if this fails."""
        raise self._lacks("capture_end")

    def capture_status(self, stream: int) -> int:
        """Identity of the capture that the stream is in, 0 if none."""
        raise self._lacks("capture_status")

    def capture_terminals(self, stream: int) -> Iterable[int]:
        """The nodes that the stream's next node would depend on."""
        raise self._lacks("capture_terminals")

    def node_predecessors(self, node: int) -> Iterable[int]:
        """The nodes that a node directly depends on."""
        raise self._lacks("node_predecessors")

    def capture_relaxed(self, relaxed: bool) -> None:
        """Whether the calling thread may allocate while a stream is being captured."""
        raise self._lacks("capture_relaxed")

    def graph_launch(self, graph: int, stream: int) -> None:
        """Give the work of a graph to a stream, as often as one likes (a capture may refuse it)."""
        raise self._lacks("graph_launch")

    def graph_destroy(self, graph: int) -> None:
        """Give a graph up."""
        raise self._lacks("graph_destroy")

    # How much memory there is.

    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
        raise self._lacks("memory_info")

    # Errors that stick.

    def clear_error(self) -> None:
        """Forget a failure that the device would otherwise report again."""
        raise self._lacks("clear_error")

    # Copies.

    def copy(
        self, destination: int, source: int, size: int, destination_device: int, source_device: int, stream: int
    ) -> None:
        """Copy in stream order; `destination` and `source` may be addresses of other devices."""
        raise self._lacks("copy")

    # Other devices.

    def peer_enable(self, other: int) -> None:
        """Let device number `other` touch the plain memory of this one."""
        raise self._lacks("peer_enable")

    # Sharing plain memory with another process (all or none).

    def segment_export(self, base: int) -> bytes:
        """What another process needs to open the segment: the same each time, at most 64 bytes. 4 bytes are a
        file descriptor, which stays yours and open until the segment is freed.
        """
        raise self._lacks("segment_export")

    def segment_import(self, handle: bytes) -> int:
        """Address of another process's segment."""
        raise self._lacks("segment_import")

    def segment_close(self, base: int) -> None:
        """Done with an imported segment."""
        raise self._lacks("segment_close")

    # Sharing chunks with another process (all or none).

    def chunk_export(self, chunk: int, kind: int) -> bytes:
        """What another process needs to open the chunk, the same each time; `kind` is 1 for a descriptor,
        which stays yours and open until the chunk is released, 2 for a handle of 64 bytes.
        """
        raise self._lacks("chunk_export")

    def chunk_import(self, kind: int, handle: bytes, size: int) -> int:
        """Handle of another process's chunk."""
        raise self._lacks("chunk_import")

    # Host memory that the device can reach quickly (all or none).

    def pinned_allocate(self, size: int) -> int:
        """Address of `size` bytes of such memory."""
        raise self._lacks("pinned_allocate")

    def pinned_free(self, address: int) -> None:
        """Give back what `pinned_allocate` returned."""
        raise self._lacks("pinned_free")

    # A stream-ordered pool that the device itself keeps (all or none).

    def ordered_allocate(self, size: int, stream: int) -> int:
        """Address of `size` bytes that work on `stream` may use from now on."""
        raise self._lacks("ordered_allocate")

    def ordered_free(self, address: int, stream: int) -> None:
        """Take back what `ordered_allocate` gave, once `stream` has done what it was given so far."""
        raise self._lacks("ordered_free")

    def ordered_trim(self, keep: int) -> None:
        """Give unused memory back to the device until at most `keep` bytes are held."""
        raise self._lacks("ordered_trim")

    def ordered_usage(self) -> tuple[int, int, int, int]:
        """(in use, the most in use, held, the most held), in bytes."""
        raise self._lacks("ordered_usage")

    def ordered_reset_high(self) -> None:
        """The two peaks start anew from what there is now."""
        raise self._lacks("ordered_reset_high")

    def ordered_access(self, device: int) -> None:
        """Let the device of that index touch the pool's memory."""
        raise self._lacks("ordered_access")
