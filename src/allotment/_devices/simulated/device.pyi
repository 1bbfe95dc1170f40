# Made from device.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device
from allotment._devices.simulated.script import Script

class SimulatedDevice(Device):
    """Addresses and capacity, no memory. Streams finish when told to.

    A stream has work only if `launch` gave it some; an event recorded behind unfinished work is not
    ready until `finish`. Waiting (synchronize) finishes what it waits for.
    """

    def __init__(self, capacity: int, index: int = 0, script: Script | None = None) -> None: ...
    @property
    def script(self) -> Script | None:
        """What decides in the device's place, for replaying recordings; None: the device itself."""
    @script.setter
    def script(self, script: Script | None) -> None: ...
    @property
    def capacity(self) -> int:
        """Bytes that the device has."""
    @property
    def used(self) -> int:
        """Bytes of segments and chunks that exist, and of what the pool holds."""
    @property
    def calls(self) -> dict[str, int]:
        """How often each operation of the contract was called, by its name."""
    def refuse(self, operation: str, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Let calls of a contract operation ("segment_allocate", "map", ...) fail, `after` more have succeeded."""
    def refuse_calls(self, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Let calls of whatever operation fail, `after` more have succeeded; `times` 0 ends it."""
    def launch(self, stream: int) -> int:
        """A unit of work on the stream: a node of its capture if it is being captured."""
    def finish(self, stream: int | None = None) -> None:
        """All work launched so far (on one stream, or all) is done."""
    def create_stream(self) -> int:
        """Handle of a new stream."""
    def destroy_stream(self, stream: int) -> None:
        """Give a stream up; its handle is refused from now on (DeviceError)."""
    def wait(self, stream: int, on: int) -> None:
        """`stream` waits for what `on` has now; it joins the capture of `on`."""
    def begin_capture(self, stream: int) -> int:
        """Capture id. Work launched on the stream becomes nodes from now on."""
    def end_capture(self, stream: int) -> None:
        """End the capture that began on the stream.

        Raises DeviceError if the capture was broken or a stream that joined was not joined back.
        """
    def break_capture(self, stream: int) -> None:
        """Spoil the capture that the stream is in, as a forbidden call would. Raises RequestError if it is in none."""
    def capture_of(self, stream: int) -> int:
        """Id of the capture that the stream is in, 0 if none."""
