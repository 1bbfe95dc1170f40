# Made from device.pyx by `make stubs`: change it there.

from types import TracebackType

from _typeshed import ReadableBuffer

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph

class CudaDevice(Device):
    """A GPU behind the CUDA driver, by index; in reports it is "cuda:0".

    Opens the driver here, not when the package is imported. Works in the device's primary context, which PyTorch, CuPy
    and the CUDA runtime share.

    Raises DeviceError if there is no usable driver or no such device, and in a process that was forked after CUDA was
    initialized. Every property and method raises DeviceError if the driver fails.

    Safe to use from several threads; the device need not be the thread's current one.
    """

    def __init__(self, index: int = 0) -> None: ...
    @property
    def model(self) -> str:
        """Product name."""
    @property
    def uuid(self) -> str:
        """ "GPU-" and the device's UUID."""
    @property
    def pci_bus_id(self) -> str:
        """PCI address of the device: "0000:1b:00.0"."""
    @property
    def total_memory(self) -> int:
        """Bytes of memory that the device has."""
    @property
    def compute_capability(self) -> tuple[int, int]:
        """(major, minor) version of the architecture."""
    def attribute(self, number: int) -> int:
        """Return a device attribute of the driver, by its number (CUdevice_attribute)."""
    def processes(self) -> list[tuple[int, int]]:
        """Return (process id, bytes) of every process with memory on the device; empty if unknown."""
    def create_stream(self) -> int:
        """Create a stream that does not wait for the default stream."""
    def destroy_stream(self, stream: int) -> None:
        """Destroy a stream. Its unfinished work goes on; later uses of its handle fail."""
    def synchronize(self, stream: int | None = None) -> None:
        """Wait for all work on a stream, or on the device."""
    def wait(self, stream: int, on: int) -> None:
        """Make later work of `stream` wait for the current work of `on`; `stream` joins the capture that `on` is in."""
    def begin_capture(self, stream: int) -> int:
        """Start a capture: work on the stream becomes nodes of a graph from now on. Returns the capture's id."""
    def end_capture(self, stream: int) -> CudaGraph:
        """End the capture that began on the stream. Raises DeviceError if it was invalidated."""
    def capture_of(self, stream: int) -> int:
        """Return the id of the capture that the stream is in, 0 if none."""
    def memset_async(self, address: int, value: int, size: int, stream: int = 0) -> None:
        """Set `size` bytes to `value`, in stream order."""
    def write_value(self, stream: int, address: int, value: int) -> None:
        """Write a 32-bit value, in stream order."""
    def wait_value(self, stream: int, address: int, value: int) -> None:
        """Make the stream wait until the 32-bit value at `address` is at least `value`."""
    def hold(self, stream: int) -> CudaHold:
        """Keep the stream busy until released."""
    def register_host(self, address: int, size: int) -> None:
        """Pin memory of this process in place, for every device. Raises DeviceError."""
    def unregister_host(self, address: int) -> None:
        """Undo `register_host`. Raises DeviceError."""
    def copy_from_host(self, address: int, data: ReadableBuffer) -> None:
        """Copy bytes to the device, and wait for the copy."""
    def copy_to_host(self, address: int, size: int) -> bytes:
        """Copy bytes from the device; does not wait for streams created here."""

class CudaHold:
    """Keeps a stream busy until `release`, the end of its `with` block, or its deletion."""

    @property
    def stream(self) -> int: ...
    def release(self) -> None:
        """Let the stream continue. A second call does nothing."""
    def __enter__(self) -> CudaHold: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class CudaGraph(DeviceGraph):
    """Work recorded by a capture on a CUDA device; it may be replayed any number of times."""

    @property
    def node_count(self) -> int:
        """Number of nodes of the graph."""
    def instantiate(self) -> None:
        """Prepare the graph for replay. Otherwise the first `replay` does so, and takes much longer."""
