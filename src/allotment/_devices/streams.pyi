# Made from streams.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Protocol

from allotment._core.contract.table import Device

class HasDevice(Protocol):
    """What is made on a device and knows it: an allocator."""

    @property
    def device(self) -> Device:
        """The device."""

class Stream:
    """Work done in order. Streams do not wait for each other unless told to (`wait`).

    A stream lives until `destroy`, not as long as this object: memory may have been freed on it, and an allocator
    knows it by its handle. Work still running then is finished.

    Safe to use from several threads. Raises StreamError when it has been destroyed, UnsupportedError for what its
    device cannot do.
    """

    def __init__(self, device: Device | HasDevice) -> None:
        """A new stream of a device, or of the device of an allocator."""
    @staticmethod
    def default(device: Device | HasDevice) -> Stream:
        """The stream that work goes to when none is named; its handle is 0."""
    @property
    def device(self) -> Device:
        """The device that does the stream's work."""
    @property
    def handle(self) -> int:
        """The number by which device and allocators know the stream; 0 is the default stream.

        Raises StreamError when the stream has been destroyed.
        """
    def submit(self, function: Callable[..., object], /, *arguments: object) -> None:
        """Run a function when everything submitted before is done (host device).

        An exception in it is raised by the next `synchronize` of this stream or of one of its events. Of several
        the first is; the others, and one that nobody asks for before the stream is destroyed or the interpreter
        ends, are reported through `sys.unraisablehook`.

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
        """Let what is submitted from now on wait for an event of any stream of this device."""
    def record(self) -> Event:
        """The stream's present place: the event is done when everything submitted so far is."""
    def destroy(self) -> None:
        """Give the stream up. Work that was submitted is still done. A second call does nothing."""
    def __eq__(self, other: object) -> bool: ...
    def __hash__(self) -> int: ...

class Event:
    """A place in a stream's work, made by `Stream.record`."""

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
