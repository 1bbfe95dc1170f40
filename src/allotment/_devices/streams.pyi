# Made from streams.pyx by `make stubs`: change it there.

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from allotment._core.contract.table import Device

class HasDevice(Protocol):
    """An object on a device that knows it, such as an allocator."""

    @property
    def device(self) -> Device:
        """The device."""

def watch_streams(device: Device, watcher: Any) -> None:
    """Report the actions of a device's streams and events to `watcher`, as long as it lives: see `Sanitizer`."""

def unwatch_streams(device: Device, watcher: Any) -> None:
    """Stop reporting to a watcher."""

class Stream:
    """Work done in order. Streams do not wait for each other unless told to (`wait`).

    `device` is a device, or an allocator, which stands for its device.

    A stream lives until `destroy`, not as long as this object: memory may have been freed on it, and an allocator knows
    it by its handle. Work that is then still running runs to its end.

    Safe to use from several threads. Every method raises StreamError once the stream has been destroyed,
    UnsupportedError for what its device cannot do, and DeviceError if the device fails.
    """

    def __init__(self, device: Device | HasDevice) -> None: ...
    @staticmethod
    def default(device: Device | HasDevice) -> Stream:
        """Return the stream for work that names no stream; its handle is 0. It cannot be destroyed."""
    @staticmethod
    def external(device: Device | HasDevice, handle: int) -> Stream:
        """Return a stream that was created elsewhere, by its handle, which is trusted. Its creator destroys it."""
    def __enter__(self) -> Stream:
        """Make it the calling thread's current stream of its device, until the `with` block ends.

        Requests that name no stream use the current one. The current stream also decides whether a request or a free is
        inside a graph capture; without one, the request's own stream decides, else the default stream.
        """
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def device(self) -> Device:
        """Device that runs the stream's work."""
    @property
    def handle(self) -> int:
        """Number by which the device and allocators know the stream; 0 is the default stream.

        Raises StreamError if the stream has been destroyed.
        """
    def submit(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Run `function(*arguments)` once everything submitted before is done. Does not wait for it.

        For devices that run Python functions: the host device does, others raise UnsupportedError.

        The next `synchronize` of this stream, or of one of its events, raises an exception of the function. Of several
        exceptions it raises the first. `sys.unraisablehook` gets the others, and any exception that no call has raised
        before the stream is destroyed or the interpreter ends.

        The function may use the allocator: allocate, free, drop buffers, even while another thread waits for this
        stream inside the allocator. It cannot wait for its own stream. While other streams have work, it cannot release
        memory to the system (`empty_cache`) either, because that waits for them, and they may wait for it. Both raise
        DeviceError.

        The thread that ran the function drops it and its arguments after the work counts as done: an argument, such as
        a view of a buffer, can outlive `synchronize` by a moment.

        While the stream is being captured, the function is recorded instead, and runs when the graph is replayed.
        """
    def query(self) -> bool:
        """Return whether everything submitted so far is done. Does not wait."""
    def synchronize(self) -> None:
        """Wait for everything submitted so far.

        Raises the exception of a submitted function. Raises DeviceError if the stream is being captured (which
        invalidates the capture) or if a function that runs on this stream calls it.
        """
    def wait(self, event: Event) -> None:
        """Make later work of this stream wait for an event of any stream of this device. The caller does not wait.

        Raises StreamError for an event of another device.
        """
    def record(self) -> Event:
        """Return an event that is done when everything submitted so far is."""
    def destroy(self) -> None:
        """Destroy the stream. Work that was submitted is still done. A second call does nothing.

        Raises StreamError for the default stream.
        """
    def _is_captured(self) -> bool:
        """Whether its work is being captured into a graph."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Event:
    """A point in a stream's work, created by `Stream.record`; done when the work before it is.

    Safe to use from several threads.
    """

    def __init__(self) -> None: ...
    @property
    def stream(self) -> Stream:
        """Stream whose work it marks."""
    @property
    def device(self) -> Device:
        """Device of that stream."""
    @property
    def handle(self) -> int:
        """Number by which the device knows the event."""
    def query(self) -> bool:
        """Return whether the work before it is done. Does not wait."""
    def synchronize(self) -> None:
        """Wait for the work before it. Raises what a function submitted to the stream raised."""

def begin_capture_of(stream: Stream) -> int:
    """`begin_capture`, where the calling thread may touch memory inside the capture."""

def capture_has_ended(stream: Stream) -> None:
    """Drop what `begin_capture_of` stored."""
