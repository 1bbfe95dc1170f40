# Made from streams.pyx by `make stubs`: change it there.

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol

from allotment._core.contract.table import Device

class HasDevice(Protocol):
    """What is made on a device and knows it: an allocator."""

    @property
    def device(self) -> Device:
        """The device."""

def watch_streams(device: Device, watcher: Any) -> None:
    """Tell `watcher`, as long as it lives, what streams and events of a device do: see `Sanitizer`."""

def unwatch_streams(device: Device, watcher: Any) -> None:
    """Tell it no more."""

class Stream:
    """Work done in order. Streams do not wait for each other unless told to (`wait`).

    `device` is a device, or an allocator, whose device is meant.

    A stream lives until `destroy`, not as long as this object: memory may have been freed on it, and an allocator
    knows it by its handle. Work still running then is finished.

    Safe to use from several threads. Every method raises StreamError once the stream has been destroyed,
    UnsupportedError for what its device cannot do, and DeviceError if the device fails.
    """

    def __init__(self, device: Device | HasDevice) -> None: ...
    @staticmethod
    def default(device: Device | HasDevice) -> Stream:
        """The stream that work goes to when none is named; its handle is 0. It cannot be destroyed."""
    @staticmethod
    def external(device: Device | HasDevice, handle: int) -> Stream:
        """A stream that was made elsewhere, by its handle, which is trusted. It is destroyed where it was made."""
    def __enter__(self) -> Stream:
        """Make it the calling thread's current stream of its device, until it is left.

        Whether a request or a free is inside a graph capture is told by the current stream. Without one, a request's
        own stream counts, else the default one.
        """
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    @property
    def device(self) -> Device:
        """The device that does the stream's work."""
    @property
    def handle(self) -> int:
        """The number by which device and allocators know the stream; 0 is the default stream.

        Raises StreamError when the stream has been destroyed.
        """
    def submit(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Run `function(*arguments)` when everything submitted before is done. Does not wait for it.

        For devices that run Python functions: the host device does, others raise UnsupportedError.

        An exception in it is raised by the next `synchronize` of this stream or of one of its events. Of several
        the first is; the others, and one that is not asked for before the stream is destroyed or the interpreter
        ends, are reported through `sys.unraisablehook`.

        It may use the allocator: ask for memory, free it, drop buffers, also while another thread waits for this stream
        inside the allocator. It cannot wait for its own stream, and while other streams have work it cannot give memory
        back to the system (`empty_cache`): that waits for them, and they may wait for it. That is a DeviceError.

        While the stream is being captured the function is kept instead, and runs when the graph is replayed.
        """
    def query(self) -> bool:
        """Whether everything submitted so far is done. Does not wait."""
    def synchronize(self) -> None:
        """Wait for everything submitted so far.

        Raises what a submitted function raised, and DeviceError if the stream is being captured (which spoils the
        capture) or if called by a function that runs on this stream.
        """
    def wait(self, event: Event) -> None:
        """Let what is submitted from now on wait for an event of any stream of this device. The caller does not wait.

        Raises StreamError for an event of another device.
        """
    def record(self) -> Event:
        """An event that is done when everything submitted so far is."""
    def destroy(self) -> None:
        """Give the stream up. Work that was submitted is still done. A second call does nothing.

        Raises StreamError for the default stream.
        """
    def _is_captured(self) -> bool:
        """Whether its work is being captured into a graph."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Event:
    """A place in a stream's work, made by `Stream.record`; done when the work before it is.

    Safe to use from several threads.
    """

    def __init__(self) -> None: ...
    @property
    def stream(self) -> Stream:
        """The stream whose work it is a place in."""
    @property
    def device(self) -> Device:
        """The device of that stream."""
    @property
    def handle(self) -> int:
        """The number by which the device knows the event."""
    def query(self) -> bool:
        """Whether the work before it is done. Does not wait."""
    def synchronize(self) -> None:
        """Wait for the work before it. Raises what a function submitted to the stream raised."""
