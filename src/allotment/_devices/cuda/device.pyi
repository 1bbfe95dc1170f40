# Made from device.pyx by `make stubs`: change it there.

from types import TracebackType

from _typeshed import ReadableBuffer

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph

class CudaDevice(Device):
    """A GPU behind the CUDA driver, by index; in reports it is "cuda:0".

    The driver is opened here, not when the package is imported. It works in the device's primary context,
    the one that PyTorch, CuPy and the CUDA runtime share.

    Raises DeviceError if there is no driver, none that can be used, or no such device, and in a process
    that was forked after CUDA was initialized. Every property and method raises DeviceError if the driver fails.

    Safe to use from several threads; none needs the device to be the thread's current one.
    """

    def __init__(self, index: int = 0) -> None: ...
    @property
    def model(self) -> str:
        """The product's name."""
    @property
    def uuid(self) -> str:
        """ "GPU-" and the device's identity."""
    @property
    def pci_bus_id(self) -> str:
        """Where the device is plugged in: "0000:1b:00.0"."""
    @property
    def total_memory(self) -> int:
        """Bytes of memory that the device has."""
    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor) of the architecture that code is compiled for."""
    def attribute(self, number: int) -> int:
        """One of the driver's device attributes, by its number (CUdevice_attribute)."""
    def processes(self) -> list[tuple[int, int]]:
        """(process id, bytes) of every process with memory here; empty where that cannot be known."""
    def create_stream(self) -> int:
        """A stream that does not wait for the default stream."""
    def destroy_stream(self, stream: int) -> None:
        """Give a stream back. Its unfinished work goes on; its handle is refused from now on."""
    def synchronize(self, stream: int | None = None) -> None:
        """Wait for all work on a stream, or on the device."""
    def wait(self, stream: int, on: int) -> None:
        """Let later work of `stream` wait for what `on` has now; `stream` joins the capture that `on` is in."""
    def begin_capture(self, stream: int) -> int:
        """Start a capture: work on the stream becomes nodes of a graph from now on. Returns the capture's id."""
    def end_capture(self, stream: int) -> CudaGraph:
        """End the capture that began on the stream. Raises DeviceError if it was spoilt."""
    def capture_of(self, stream: int) -> int:
        """Id of the capture that the stream is in, 0 if none."""
    def memset_async(self, address: int, value: int, size: int, stream: int = 0) -> None:
        """Set `size` bytes to `value`, in stream order."""
    def write_value(self, stream: int, address: int, value: int) -> None:
        """Write a 32-bit value, in stream order."""
    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Let the stream wait until the 32-bit value at `address` is at least `value`."""
    def hold(self, stream: int) -> CudaHold:
        """Keep the stream busy until released."""
    def register_host(self, address: int, size: int) -> None:
        """Pin memory of this process where it is, for every device. Raises DeviceError."""
    def unregister_host(self, address: int) -> None:
        """Undo `register_host`. Raises DeviceError."""
    def copy_from_host(self, address: int, data: ReadableBuffer) -> None:
        """Copy bytes to the device, and wait for it."""
    def copy_to_host(self, address: int, size: int) -> bytes:
        """Copy bytes from the device; waits for no stream that was made here."""

class CudaHold:
    """Keeps a stream busy until `release`, the end of its `with` block, or its own end."""

    @property
    def stream(self) -> int: ...
    def release(self) -> None:
        """Let the stream go on. A second call does nothing."""
    def __enter__(self) -> CudaHold: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class CudaGraph(DeviceGraph):
    """Work kept by a capture on a CUDA device; it may be replayed any number of times."""

    @property
    def node_count(self) -> int:
        """How many nodes the graph has."""
    def instantiate(self) -> None:
        """Make it ready for replay; the first `replay` does so by itself, and takes much longer for it."""
