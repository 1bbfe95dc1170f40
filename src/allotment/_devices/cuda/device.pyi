from types import TracebackType

from _typeshed import ReadableBuffer

from allotment._core.contract.table import Device
from allotment._devices.graphs import DeviceGraph

class CudaDevice(Device):
    """A GPU behind the CUDA driver, by index; in reports it is "cuda:0".

    The driver is opened here, not when the package is imported. It works in the device's primary context,
    the one that PyTorch, CuPy and the CUDA runtime share.

    Raises DeviceError if there is no driver, none that can be used, or no such device, and in a process
    that was forked after CUDA was initialized.
    """

    def __init__(self, index: int = 0) -> None: ...
    @property
    def model(self) -> str:
        """The product's name."""
    @property
    def uuid(self) -> str:
        """ "GPU-" and the device's identity."""
    @property
    def pci_bus_id(self) -> str: ...
    @property
    def total_memory(self) -> int: ...
    @property
    def compute_capability(self) -> tuple[int, int]: ...
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
        """`stream` waits for what `on` has now; it joins the capture of `on`."""
    def begin_capture(self, stream: int) -> int:
        """Capture id. Work on the stream becomes nodes of a graph from now on."""
    def end_capture(self, stream: int) -> CudaGraph: ...
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
    def copy_from_host(self, address: int, data: ReadableBuffer) -> None:
        """Copy bytes to the device, and wait for it."""
    def copy_to_host(self, address: int, size: int) -> bytes:
        """Copy bytes from the device; waits for no stream that was made here."""

class CudaHold:
    """Keeps a stream busy until `release`, the end of its `with` block, or its own end."""

    @property
    def stream(self) -> int: ...
    def release(self) -> None: ...
    def __enter__(self) -> CudaHold: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...

class CudaGraph(DeviceGraph):
    """A captured graph."""

    @property
    def node_count(self) -> int: ...
    def instantiate(self) -> None:
        """Make it ready for replay; `replay` does so by itself."""
