# Made from device.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph
from allotment._devices.simulated.script import Script

class SimulatedDevice(Device):
    """Addresses and capacity, no memory. Streams finish when told to.

    A stream has work only if `launch` gave it some; an event recorded behind unfinished work is not
    ready until `finish`. Waiting (synchronize) finishes what it waits for.

    `capacity` is the device's memory, in bytes or as "80GiB", `index` its number in reports, `script` what decides in
    its place, for replaying recordings. Raises SettingsError for what is not a size, RequestError for a capacity of 0
    or of 2**60 and above. Safe to use from several threads, except `finish` and the captures of one stream.
    """

    def __init__(self, capacity: int | str, index: int = 0, script: Script | None = None) -> None: ...
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
        """Let calls of one contract operation ("segment_allocate", "map", ...) fail: `times` of them, `after` others.

        They fail as out of memory, or with `out_of_memory=False` as a device error. Raises RequestError for an
        operation that this device does not have.
        """
    def refuse_calls(self, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Let calls of any operation fail: `times` of them, `after` others; 0 times ends it."""
    def launch(self, stream: int) -> int:
        """Give the stream a unit of work, done at `finish`; in a capture a node, whose number is returned (else 0)."""
    def finish(self, stream: int | None = None) -> None:
        """Let all work launched so far be done, on one stream or (None) on all."""
    def create_stream(self) -> int:
        """Handle of a new stream."""
    def destroy_stream(self, stream: int) -> None:
        """Give a stream up; its handle is refused from now on (DeviceError)."""
    def wait(self, stream: int, on: int) -> None:
        """Let later work of `stream` wait for what `on` has now; `stream` joins the capture that `on` is in."""
    def begin_capture(self, stream: int) -> int:
        """Start a capture: work launched on the stream becomes nodes from now on. Returns the capture's id."""
    def end_capture(self, stream: int) -> DeviceGraph:
        """End the capture that began on the stream.

        Raises DeviceError if the capture was broken or a stream that joined was not joined back.
        """
    def break_capture(self, stream: int) -> None:
        """Spoil the capture that the stream is in, as a forbidden call would. Raises RequestError if it is in none."""
    def capture_of(self, stream: int) -> int:
        """Id of the capture that the stream is in, 0 if none."""
