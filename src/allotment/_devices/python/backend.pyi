from collections.abc import Iterable

from allotment._core.contract.table import Device

class Backend(Device):
    """A device written in Python: subclass it, define what your device can do, give it to an `Allocator`.

    `allocate` and `free` are enough. Every other method is optional; what the class defines when an object
    is made is what the device can do. Methods that only make sense together (a headline below with
    "together") are defined all or none; TypeError says which one is missing. Setting one to None in a
    subclass takes it away again.

    How a method says no: MemoryError means that there is no room now (the allocator gives cached memory
    back and asks again); StreamError or AddressError that a handle is not, or no longer, one of this
    device's; UnsupportedError that it cannot do this; anything else that the device failed. The allocator's
    user gets our error, chained to yours. A method that raises must have changed nothing.

    Methods are called from any thread, several at once, and while the allocator is locked: never call the
    allocator that the device serves. Addresses and handles are ints from 1 to 2**64 - 1; sizes are bytes.
    Stream 0 is the default stream. See docs/writing-a-backend.md.
    """

    def __init__(
        self, *, name: str | None = None, family: str | None = None, index: int = 0, host: bool = False
    ) -> None:
        """`name` is shown in messages, by default the name of the class; `family` is the kind of device, by default
        "python" (memory that CUDA can use says "cuda"); `index` is the device's number in reports and snapshots;
        `host` says that this process can read and write at the device's addresses."""

    # Plain memory: the only part every device has.
    def allocate(self, size: int, stream: int) -> int:
        """Address of `size` new bytes. `stream` is where they are first wanted.

        Blocks are cut from them at multiples of 512, so what you align these to is what blocks are aligned to.
        """
    def free(self, address: int, size: int) -> None:
        """Give back what `allocate` returned, whole."""

    # Virtual memory, together: addresses (ranges) apart from physical memory (chunks).
    def range_reserve(self, size: int, stream: int) -> int:
        """Address of `size` bytes of address space with nothing behind it."""
    def range_release(self, address: int, size: int) -> None:
        """Give back a whole range; nothing is mapped in it any more."""
    def chunk_create(self, size: int) -> int:
        """Handle of `size` bytes of physical memory that have no address yet."""
    def chunk_release(self, chunk: int, size: int) -> None:
        """Drop the handle; the memory goes when its last mapping does."""
    def map(self, address: int, size: int, chunk: int) -> None:
        """Put a whole chunk at an address inside a range. One chunk may be at several addresses at once."""
    def unmap(self, address: int, size: int) -> None:
        """Take away whole mappings."""
    def set_access(self, address: int, size: int, device: int) -> None:
        """Let a device (this one, by its own index) touch what is mapped there."""
    def granularity(self) -> int:
        """Ranges, chunks and addresses of mappings are multiples of this."""

    # Making streams, together.
    def stream_create(self) -> int: ...
    def stream_destroy(self, stream: int) -> None:
        """From now on the handle gets StreamError from every method that takes it."""

    # Streams and events, together. Without them all work counts as finished when it was submitted.
    def stream_query(self, stream: int) -> bool:
        """Whether everything submitted to the stream is done. Does not wait."""
    def stream_synchronize(self, stream: int) -> None:
        """Wait for everything submitted to the stream."""
    def stream_wait(self, stream: int, event: int) -> None:
        """Later work of the stream waits for the event; the caller does not."""
    def device_synchronize(self) -> None:
        """Wait for all work of all streams."""
    def event_create(self) -> int: ...
    def event_destroy(self, event: int) -> None: ...
    def event_record(self, event: int, stream: int) -> None:
        """The event stands for what the stream has been given so far. Recorded again, it forgets what it stood for."""
    def event_query(self, event: int) -> bool:
        """Whether the event's work is done; also if it was never recorded. Does not wait."""
    def event_synchronize(self, event: int) -> None:
        """Wait for the event's work."""

    # Graph capture, together.
    def capture_begin(self, stream: int) -> int:
        """Identity of a new capture: work given to the stream becomes nodes of a graph instead of running."""
    def capture_end(self, stream: int) -> int:
        """The graph, as a number of your choice."""
    def capture_status(self, stream: int) -> int:
        """Identity of the capture that the stream is in, 0 if none."""
    def capture_terminals(self, stream: int) -> Iterable[int]:
        """The nodes that the stream's next node would depend on."""
    def node_predecessors(self, node: int) -> Iterable[int]:
        """The nodes that a node directly depends on."""
    def capture_relaxed(self, relaxed: bool) -> None:
        """Whether the calling thread may allocate while a stream is being captured."""

    # Each on its own.
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
    def clear_error(self) -> None:
        """Forget a failure that the device would otherwise report again."""
    def copy(self, destination: int, source: int, size: int, source_device: int, stream: int) -> None:
        """Copy in stream order; `source` may be an address of another device."""
    def peer_enable(self, other: int) -> None:
        """Let device number `other` touch the memory of this one."""

    # Sharing plain memory with another process, together.
    def segment_export(self, base: int) -> bytes:
        """What another process needs to open the segment; at most 64 bytes."""
    def segment_import(self, handle: bytes) -> int:
        """Address of another process's segment."""
    def segment_close(self, base: int) -> None:
        """Done with an imported segment."""

    # Sharing chunks with another process, together. `kind` is one of `allotment._core.contract.probe.Share`.
    def chunk_export(self, chunk: int, kind: int) -> bytes: ...
    def chunk_import(self, kind: int, handle: bytes, size: int) -> int: ...

    # Host memory that the device can reach quickly, together.
    def pinned_allocate(self, size: int) -> int: ...
    def pinned_free(self, address: int) -> None: ...

    # A stream-ordered pool that the device itself keeps, together: for `backend:cudaMallocAsync`, which leaves all
    # caching to the device.
    def ordered_allocate(self, size: int, stream: int) -> int:
        """Address of `size` bytes that work on `stream` may use from now on."""
    def ordered_free(self, address: int, stream: int) -> None:
        """Take back what `ordered_allocate` gave, once `stream` has done what it was given so far."""
    def ordered_trim(self, keep: int) -> None:
        """Give memory that nobody uses back to the device until at most `keep` bytes are held."""
    def ordered_usage(self) -> tuple[int, int, int, int]:
        """(in use, the most in use, held, the most held), in bytes."""
    def ordered_reset_high(self) -> None:
        """The two peaks start anew from what there is now."""
    def ordered_access(self, device: int) -> None:
        """Let the device of that index touch the pool's memory."""
