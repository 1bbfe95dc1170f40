# Made from graphs.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device
from allotment._devices.streams import Stream

class DeviceGraph:
    """Work kept by a capture. It may be replayed any number of times, also after its streams are gone.

    Made by ending a capture. Safe to use from several threads.
    """

    def __init__(self) -> None: ...
    @property
    def device(self) -> Device:
        """The device it was captured on."""
    @property
    def handle(self) -> int:
        """The device's handle of it, 0 once destroyed."""
    def replay(self, stream: Stream | int) -> None:
        """Do all of it again on a stream, each piece after those it depends on, as one piece of the stream's work.

        Raises StreamError if the stream is not one of the graph's device, DeviceError if the graph was destroyed.
        """
    def destroy(self) -> None:
        """Give the graph up; a second time, nothing happens. What was replayed before still runs to its end."""

def begin_capture(device: Device, stream: Stream | int) -> int:
    """Identity of a new capture: from now on work given to the stream is kept, not run.

    Raises UnsupportedError if the device cannot capture.
    """

def end_capture(device: Device, stream: Stream | int) -> DeviceGraph:
    """The graph of what was kept.

    Raises DeviceError if the capture was spoilt by a forbidden call, or if a stream that joined was not joined back; it
    has ended then all the same.
    """
