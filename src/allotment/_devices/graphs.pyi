# Made from graphs.pyx by `make stubs`: change it there.

from allotment._core.contract.table import Device
from allotment._devices.streams import Stream

class DeviceGraph:
    """Work recorded by a capture. It may be replayed any number of times, also after its streams are gone.

    Created by ending a capture. Safe to use from several threads.
    """

    def __init__(self) -> None: ...
    @property
    def device(self) -> Device:
        """Device that it was captured on."""
    @property
    def handle(self) -> int:
        """Handle of the graph on its device, 0 once destroyed."""
    def replay(self, stream: Stream | int) -> None:
        """Run the captured work again on a stream, as one piece of the stream's work, in the order of its dependencies.

        Raises StreamError if the stream is not one of the graph's device, DeviceError if the graph was destroyed.
        """
    def destroy(self) -> None:
        """Destroy the graph; does nothing the second time. Work replayed before still runs to its end."""

def begin_capture(device: Device, stream: Stream | int) -> int:
    """Begin a capture and return its identity: from now on work given to the stream is recorded, not run.

    Raises UnsupportedError if the device cannot capture.
    """

def end_capture(device: Device, stream: Stream | int) -> DeviceGraph:
    """End the capture of a stream and return its graph.

    Raises DeviceError if a forbidden call invalidated the capture, or if a stream that joined was not joined back; even
    then the capture has ended.
    """
