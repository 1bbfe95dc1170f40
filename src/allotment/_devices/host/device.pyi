# Made from device.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph
from allotment._devices.streams import Stream

class HostDevice(Device):
    """This machine's memory as a device: "host". Linux only.

    Each stream is a queue with a worker thread, so its work really runs in parallel to the caller. Virtual memory,
    events and capture are real too. In a child of `fork` the parent's streams are dead (StreamError); new ones and the
    default stream work.

    `index` is the device's number in reports; it distinguishes two host devices of one process. With `shareable` each
    segment, and each page of an expandable one, has a memory file and thus its own descriptor, so that other processes
    can open it (`Allocator.share`). Safe to use from several threads.
    """

    def __init__(self, index: int = 0, *, shareable: bool = False) -> None: ...
    @property
    def shareable(self) -> bool:
        """Whether other processes can open its memory."""
    @property
    def used(self) -> int:
        """Bytes of existing segments and chunks."""
    @property
    def unlocked(self) -> int:
        """Number of pinned blocks that the system refused to lock in memory (`ulimit -l`), so that it may swap them."""
    def register_host(self, address: int, size: int) -> None:
        """Lock memory of this process in place. If the system refuses, `unlocked` counts it, without an error."""
    def unregister_host(self, address: int) -> None:
        """Undo `register_host`; the lock ends with the memory."""
    def _note_asleep(self, ranges: list[tuple[int, int]], words: str) -> None:
        """Set the owner that is named when a thread touches these (address, size), until `_forget_asleep`."""
    def _forget_asleep(self, ranges: list[tuple[int, int]]) -> None: ...
    def submit(self, stream: int, function: Callable[..., object], arguments: tuple[Any, ...] = ()) -> None:
        """Run a function in stream order; `Stream.submit` is the convenient form."""
    def take_exception(self, stream: int) -> BaseException | None:
        """Return what a function submitted to the stream raised, once."""
    def _stream_of_caller(self) -> tuple[int, bool] | None:
        """Return (stream whose function the calling thread runs, whether more work is queued there), or None."""
    def begin_capture(self, stream: Stream | int) -> int:
        """Begin a capture and return its identity: from now on work given to the stream is recorded, not run."""
    def end_capture(self, stream: Stream | int) -> HostGraph:
        """End the capture and return its graph.

        Raises DeviceError if a forbidden call invalidated the capture or if a stream that joined was not joined back;
        the capture has ended all the same.
        """

class HostGraph(DeviceGraph):
    """Work recorded by a capture. It may be replayed any number of times, also after its streams are gone."""

    @property
    def node_count(self) -> int:
        """Number of tasks in the graph."""
