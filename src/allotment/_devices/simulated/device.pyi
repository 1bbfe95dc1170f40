# Made from device.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph
from allotment._devices.simulated.script import Script

class SimulatedDevice(Device):
    """Addresses and capacity, no memory. Streams finish when told to.

    A stream has work only if `launch` gave it some; an event recorded after unfinished work is not ready until
    `finish`. Waiting (synchronize) finishes what it waits for.

    `capacity` is the device's memory, in bytes or as "80GiB", `index` its number in reports; a `script` decides in its
    place, for replaying recordings. Raises SettingsError for an invalid size, RequestError for a capacity of 0 or of
    2**60 and above. Safe to use from several threads, except `finish` and the captures of one stream.
    """

    def __init__(self, capacity: int | str, index: int = 0, script: Script | None = None) -> None: ...
    @property
    def script(self) -> Script | None:
        """Script that decides in the device's place, for replaying recordings; None: the device itself."""
    @script.setter
    def script(self, script: Script | None) -> None: ...
    @property
    def capacity(self) -> int:
        """Bytes that the device has."""
    @property
    def used(self) -> int:
        """Bytes of existing segments and chunks, and of the pool."""
    @property
    def calls(self) -> dict[str, int]:
        """Number of calls of each contract operation, by its name."""
    def refuse(self, operation: str, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Make calls of one contract operation ("segment_allocate", "map", ...) fail: `times` of them, after `after`
        calls.

        They fail as out of memory or, with `out_of_memory=False`, as a device error. Raises RequestError for an
        operation that this device does not have.
        """
    def refuse_calls(self, times: int = 1, after: int = 0, *, out_of_memory: bool = True) -> None:
        """Make calls of any operation fail: `times` of them, after `after` calls; 0 times ends it."""
    def launch(self, stream: int) -> int:
        """Give the stream a unit of work, done at `finish`; in a capture a node. Returns the node's number, else 0."""
    def finish(self, stream: int | None = None) -> None:
        """Finish all work launched so far, on one stream or (None) on all."""
    def create_stream(self) -> int:
        """Create a stream and return its handle."""
    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream; later uses of its handle fail (DeviceError)."""
    def wait(self, stream: int, on: int) -> None:
        """Make later work of `stream` wait for the current work of `on`; `stream` joins the capture that `on` is in."""
    def begin_capture(self, stream: int) -> int:
        """Start a capture: work launched on the stream becomes nodes from now on. Returns the capture's id."""
    def end_capture(self, stream: int) -> DeviceGraph:
        """End the capture that began on the stream.

        Raises DeviceError if the capture was broken or a stream that joined was not joined back.
        """
    def break_capture(self, stream: int) -> None:
        """Invalidate the stream's capture, as a forbidden call would. Raises RequestError if it is in none."""
    def capture_of(self, stream: int) -> int:
        """Return the id of the capture that the stream is in, 0 if none."""
