# Made from device.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph
from allotment._devices.streams import Stream

class HostDevice(Device):
    """This machine's memory as a device: "host". Linux only.

    Streams are queues with a worker thread each, so work on them really runs beside the caller. Virtual memory,
    events and capture are real too. In a child of `fork` the parent's streams are dead (StreamError); new ones and
    the default stream work.

    `index` is the device's number in reports: two host devices of one process are told apart by it. With `shareable`
    each segment, and each page of an expandable one, has a memory file and with that a descriptor of its own, so that
    other processes can be let in (`Allocator.share`). Safe to use from several threads.
    """

    def __init__(self, index: int = 0, *, shareable: bool = False) -> None: ...
    @property
    def shareable(self) -> bool:
        """Whether its memory can be shared with other processes."""
    @property
    def used(self) -> int:
        """Bytes of segments and chunks that exist."""
    @property
    def unlocked(self) -> int:
        """How many pieces of pinned memory the system refused to lock in place (`ulimit -l`), so that it may swap."""
    def register_host(self, address: int, size: int) -> None:
        """Lock memory of this process in place. What the system refuses is counted by `unlocked`, and no error."""
    def unregister_host(self, address: int) -> None:
        """Undo `register_host`; the lock ends with the memory."""
    def _note_asleep(self, ranges: list[tuple[int, int]], words: str) -> None:
        """Say whose it is when memory at these (address, size) is touched, until `_forget_asleep`."""
    def _forget_asleep(self, ranges: list[tuple[int, int]]) -> None: ...
    def submit(self, stream: int, function: Callable[..., object], arguments: tuple[Any, ...] = ()) -> None:
        """Run a function in stream order; `Stream.submit` is the convenient form."""
    def take_exception(self, stream: int) -> BaseException | None:
        """What a function submitted to the stream raised, once."""
    def begin_capture(self, stream: Stream | int) -> int:
        """Identity of the new capture: from now on work given to the stream is kept, not run."""
    def end_capture(self, stream: Stream | int) -> HostGraph:
        """What was captured.

        Raises DeviceError if the capture was spoilt by a forbidden call or if a stream that joined was not joined
        back; it has ended then all the same.
        """

class HostGraph(DeviceGraph):
    """Work kept by a capture. It may be replayed any number of times, also after its streams are gone."""

    @property
    def node_count(self) -> int:
        """How many pieces of work it holds."""
