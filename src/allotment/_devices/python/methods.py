# written by `make generate` from _core/contract/operations.py: do not edit
"""The methods that a device written in Python may define; it lacks the operations that it does not define."""

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
        """Return the address of `size` new bytes. `stream` is the stream that first uses them.

        The address is a multiple of 16 below 2**63. The allocator cuts blocks at multiples of 512 from it,
        so your alignment is the alignment that blocks get.
        """
        raise self._lacks("allocate")

    def free(self, address: int, size: int) -> None:
        """Free all memory at an address that `allocate` returned. Raise AddressError the second time."""
        raise self._lacks("free")

    # Virtual memory: addresses (ranges) apart from physical memory (chunks) (all or none).

    def range_reserve(self, size: int, stream: int) -> int:
        """Return the address of `size` bytes of address space, with no memory mapped."""
        raise self._lacks("range_reserve")

    def range_release(self, address: int, size: int) -> None:
        """Release a whole range. Nothing is mapped in it any more."""
        raise self._lacks("range_release")

    def chunk_create(self, size: int) -> int:
        """Return a handle of `size` bytes of physical memory that have no address yet."""
        raise self._lacks("chunk_create")

    def chunk_release(self, chunk: int, size: int) -> None:
        """Release the handle. The memory is freed with its last mapping."""
        raise self._lacks("chunk_release")

    def map(self, address: int, size: int, chunk: int) -> None:
        """Map a whole chunk at an address inside a range. One chunk may be mapped at several addresses."""
        raise self._lacks("map")

    def unmap(self, address: int, size: int) -> None:
        """Unmap whole mappings."""
        raise self._lacks("unmap")

    def set_access(self, address: int, size: int, device: int) -> None:
        """Let a device (this one, by its own index) access the mappings there."""
        raise self._lacks("set_access")

    def granularity(self) -> int:
        """Return the unit of ranges, chunks and addresses of mappings."""
        raise self._lacks("granularity")

    # Creating streams (all or none).

    def stream_create(self) -> int:
        """Return the handle of a new stream."""
        raise self._lacks("stream_create")

    def stream_destroy(self, stream: int) -> None:
        """From now on every method that takes this handle raises StreamError. Only `event_record` may still
        accept it, for an event that is done when the work submitted to the stream is done.
        """
        raise self._lacks("stream_destroy")

    # Streams and events: without them all work counts as finished once it is submitted (all or none).

    def stream_query(self, stream: int) -> bool:
        """Return whether all work submitted to the stream is done. Does not wait."""
        raise self._lacks("stream_query")

    def stream_synchronize(self, stream: int) -> None:
        """Wait for all work submitted to the stream."""
        raise self._lacks("stream_synchronize")

    def stream_wait(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the event; the caller does not."""
        raise self._lacks("stream_wait")

    def device_synchronize(self) -> None:
        """Wait for all work of all streams."""
        raise self._lacks("device_synchronize")

    def event_create(self) -> int:
        """Return the handle of a new event."""
        raise self._lacks("event_create")

    def event_destroy(self, event: int) -> None:
        """Destroy an event."""
        raise self._lacks("event_destroy")

    def event_record(self, event: int, stream: int) -> None:
        """Record the work submitted to the stream so far in the event. This replaces an earlier recording."""
        raise self._lacks("event_record")

    def event_query(self, event: int) -> bool:
        """Return whether the event's work is done; True if it was never recorded. Does not wait."""
        raise self._lacks("event_query")

    def event_synchronize(self, event: int) -> None:
        """Wait for the event's work."""
        raise self._lacks("event_synchronize")

    # Events for other processes (all or none).

    def shared_event_create(self) -> int:
        """Return the handle of a new event to export."""
        raise self._lacks("shared_event_create")

    def event_export(self, event: int) -> bytes:
        """Return what another process needs to wait for the event; at most 64 bytes."""
        raise self._lacks("event_export")

    def event_import(self, handle: bytes) -> int:
        """Return a handle of another process's event."""
        raise self._lacks("event_import")

    # Graph capture (all or none).

    def capture_begin(self, stream: int) -> int:
        """Begin a capture; return its identity. Work given to the stream becomes graph nodes and does not run."""
        raise self._lacks("capture_begin")

    def capture_end(self, stream: int) -> int:
        """End the capture and return the handle of its graph. The capture ends even if this fails."""
        raise self._lacks("capture_end")

    def capture_status(self, stream: int) -> int:
        """Return the identity of the capture that the stream is in, 0 if none."""
        raise self._lacks("capture_status")

    def capture_terminals(self, stream: int) -> Iterable[int]:
        """Return the nodes that the stream's next node would depend on."""
        raise self._lacks("capture_terminals")

    def node_predecessors(self, node: int) -> Iterable[int]:
        """Return the nodes that a node depends on."""
        raise self._lacks("node_predecessors")

    def capture_relaxed(self, relaxed: bool) -> None:
        """Set whether the calling thread may allocate while a stream is being captured."""
        raise self._lacks("capture_relaxed")

    def graph_launch(self, graph: int, stream: int) -> None:
        """Submit the work of a graph to a stream. May be called any number of times; a capture may refuse it."""
        raise self._lacks("graph_launch")

    def graph_destroy(self, graph: int) -> None:
        """Destroy a graph."""
        raise self._lacks("graph_destroy")

    # Amount of memory.

    def memory_info(self) -> tuple[int, int]:
        """Return the device's (free, total) bytes."""
        raise self._lacks("memory_info")

    # Sticky errors.

    def clear_error(self) -> None:
        """Clear a failure that the device would otherwise report again."""
        raise self._lacks("clear_error")

    # Copies.

    def copy(
        self, destination: int, source: int, size: int, destination_device: int, source_device: int, stream: int
    ) -> None:
        """Copy in stream order; `destination` and `source` may be addresses of other devices."""
        raise self._lacks("copy")

    # Other devices.

    def peer_enable(self, other: int) -> None:
        """Let device number `other` access the plain memory of this one."""
        raise self._lacks("peer_enable")

    # Sharing plain memory with another process (all or none).

    def segment_export(self, base: int) -> bytes:
        """Return what another process needs to open the segment: the same each time, at most 64 bytes.
        4 bytes are a file descriptor, which you own and keep open until the segment is freed.
        """
        raise self._lacks("segment_export")

    def segment_import(self, handle: bytes) -> int:
        """Open another process's segment: its address."""
        raise self._lacks("segment_import")

    def segment_close(self, base: int) -> None:
        """Close an imported segment."""
        raise self._lacks("segment_close")

    # Sharing chunks with another process (all or none).

    def chunk_export(self, chunk: int, kind: int) -> bytes:
        """Return what another process needs to open the chunk, the same each time. `kind` is 1 for a
        descriptor, which you own and keep open until the chunk is released, 2 for a handle of 64 bytes.
        """
        raise self._lacks("chunk_export")

    def chunk_import(self, kind: int, handle: bytes, size: int) -> int:
        """Open another process's chunk: its handle here."""
        raise self._lacks("chunk_import")

    # Host memory that the device can reach quickly (all or none).

    def pinned_allocate(self, size: int) -> int:
        """Return the address of `size` such bytes."""
        raise self._lacks("pinned_allocate")

    def pinned_free(self, address: int) -> None:
        """Free what `pinned_allocate` returned."""
        raise self._lacks("pinned_free")

    # A stream-ordered pool that the device itself keeps (all or none).

    def ordered_allocate(self, size: int, stream: int) -> int:
        """Return the address of `size` bytes that later work on `stream` may use."""
        raise self._lacks("ordered_allocate")

    def ordered_free(self, address: int, stream: int) -> None:
        """Free what `ordered_allocate` returned, once the work submitted to `stream` so far is done."""
        raise self._lacks("ordered_free")

    def ordered_trim(self, keep: int) -> None:
        """Release unused memory until the pool holds at most `keep` bytes."""
        raise self._lacks("ordered_trim")

    def ordered_usage(self) -> tuple[int, int, int, int]:
        """Return (bytes in use, their peak, bytes held, their peak)."""
        raise self._lacks("ordered_usage")

    def ordered_reset_high(self) -> None:
        """Reset both peaks to the current values."""
        raise self._lacks("ordered_reset_high")

    def ordered_access(self, device: int) -> None:
        """Let the device of that index access the pool's memory."""
        raise self._lacks("ordered_access")
