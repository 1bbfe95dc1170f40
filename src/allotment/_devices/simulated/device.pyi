from typing import Protocol

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph

class Script(Protocol):
    """Answers for what a device decides and an allocator cannot: for replaying recordings.

    Each method is optional; a missing one means the device decides by itself.
    """

    def segment(self, size: int, stream: int) -> int | None:
        """Address of a new plain segment; None refuses it as out of memory."""
    def reserve(self, size: int, stream: int) -> int | None:
        """Base of a new reserved range; None refuses."""
    def create(self, size: int) -> bool:
        """Whether a physical chunk of this size can be had."""
    def event_finished(self, event: int) -> bool:
        """Whether an event that is being queried has finished (waiting always succeeds)."""
    def free_memory(self) -> int:
        """What the device reports as free."""

class SimulatedDevice(Device):
    """Addresses and capacity, no memory. Streams finish when told to.

    A stream has work only if `launch` gave it some; an event recorded behind unfinished work is not
    ready until `finish`. Waiting (synchronize) finishes what it waits for.
    """

    script: Script | None

    def __init__(self, capacity: int, index: int = 0, script: Script | None = None) -> None: ...
    @property
    def capacity(self) -> int: ...
    @property
    def used(self) -> int:
        """Bytes of segments and chunks that exist, and of what the pool holds."""
    calls: dict[str, int]
    def refuse(self, operation: str, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Let calls of a contract operation ("segment_allocate", "map", ...) fail, `after` more have succeeded."""
    def refuse_calls(self, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Let calls of whatever operation fail, `after` more have succeeded; `times` 0 ends it."""
    def launch(self, stream: int) -> int:
        """A unit of work on the stream: a node of its capture if it is being captured."""
    def finish(self, stream: int | None = None) -> None:
        """All work launched so far (on one stream, or all) is done."""
    def create_stream(self) -> int: ...
    def destroy_stream(self, stream: int) -> None: ...
    def wait(self, stream: int, on: int) -> None:
        """`stream` waits for what `on` has now; it joins the capture of `on`."""
    def begin_capture(self, stream: int) -> int:
        """Capture id. Work launched on the stream becomes nodes from now on."""
    def end_capture(self, stream: int) -> DeviceGraph:
        """Raises DeviceError if the capture was broken or a stream that joined was not joined back."""
    def break_capture(self, stream: int) -> None: ...
    def capture_of(self, stream: int) -> int:
        """Id of the capture that the stream is in, 0 if none."""
