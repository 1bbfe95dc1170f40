# Made from base.pyx by `make stubs`: change it there.

from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings

class AllocatorBase:
    """What every kind of allocator has; users hold one of the kinds."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Give all memory that is not in use back to the device, and serve no request any more.

        Blocks that are in use are reported with a ResourceWarning; they can still be freed. Figures can still be read.
        A second time, nothing happens. Raises RequestError if C code was given its entry points, DeviceError.
        """
    @property
    def closed(self) -> bool:
        """Whether it was closed: requests raise RequestError then."""
    @property
    def device(self) -> Device:
        """The device whose memory this is: its `name`, `index` and `capabilities`."""
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """A buffer of `size` bytes for work on `stream`; it frees itself when the last reference to it goes.

        `size` is a number of bytes or text such as "1MiB". Without a stream the buffer is for the calling thread's
        current one, else the default one. Then memory that this process can read is also ready for the calling thread:
        the call waits until no queued work uses it. With a stream, the call waits for nothing, and work on that stream
        may use the buffer. Raises what `malloc` raises. Safe to call from several threads.
        """
    def array(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """A NumPy array of this allocator's memory, with whatever is in it; the array keeps its block alive.

        The calling thread may use it at once: the call waits for the work that is queued on `stream`, which may still
        use the memory. `stream` is by default the calling thread's current one, else the default one. A function that
        runs on a stream does not wait; a caching allocator gives it other memory if need be. Of a stream in a graph
        capture only the work before the capture is waited for.

        Raises UnsupportedError for memory that this process cannot read, TypeError for a dtype that holds Python
        objects, and what `malloc` raises. Safe to call from several threads.
        """
    def zeros(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """`array`, filled with zeros, by the calling thread."""
    def full(
        self, shape: int | tuple[int, ...], value: Any, dtype: Any = None, *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """`array`, filled with a value by the calling thread; its dtype is that of the value if none is given."""
    def like(self, array: Any, *, stream: Stream | int | None = None) -> NDArray[Any]:
        """`array` of the shape and dtype of another, with whatever is in it: its values are not copied."""
    def _ready(self, size: int, stream: Stream | int | None = None) -> Buffer:
        """`empty`, of memory that the calling thread may touch at once, also where a stream is given."""
    def _block_around(self, address: int) -> tuple[int, int] | None:
        """(start, size) of the live block that holds an address; None if none of ours does."""
    def copy(
        self,
        destination: Buffer | int,
        source: Buffer | int,
        size: int,
        stream: Stream | int | None = None,
        *,
        source_device: int | None = None,
        destination_device: int | None = None,
    ) -> None:
        """Copy `size` bytes in stream order, from `source` to `destination`.

        `stream` is by default the calling thread's current one, else the default one. `source` and `destination` are
        each a buffer, an object with the buffer protocol such as an array, or an address in a live block. All of it
        must lie in that memory: AddressError, SizeError. An address that no allocator here knows is refused on host
        memory, and left to the device elsewhere. `source_device` and `destination_device` are the indexes of other
        devices that hold them. Returns at once; the copy is done when the stream is. Raises StreamError,
        UnsupportedError if the device cannot copy, DeviceError. Safe to call from several threads.
        """
    def stats(self) -> dict[str, int]:
        """All counters, flattened: {"allocated_bytes.all.current": 512, ...}, sorted by key.

        Costs about a hundred small objects; takes the allocator's lock for a moment. Safe to call from several
        threads.
        """
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device, as the device says.

        A call to the device. Raises UnsupportedError if it cannot tell, DeviceError. Safe to call from several
        threads.
        """
    def process(self) -> dict[str, Any]:
        """What this process holds on the device, by library, down to what nobody can explain; all in bytes.

        "libraries" by name, "context", "modules", "unexplained", and their "total", which is the driver's figure for
        this process. Raises UnsupportedError unless the process was started by `python -m allotment.preload`. Asks the
        driver, and looks at every block. Safe to call from several threads.
        """
    @property
    def limit(self) -> int | None:
        """The most bytes that this allocator may hold, or None. Set it to bytes, to text such as "20GiB", or to None.

        What is held already stays. Setting it raises SettingsError for what is not a size.
        """
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    @property
    def settings(self) -> Settings:
        """The settings in force, as a `Settings` record. Assign a text to change them: "max_split_size_mb:64".

        The keys that the text names change, all of them or, on a fault, none; the others stay. Memory that is held
        already stays as it is. Assigning raises SettingsError.
        """
    @settings.setter
    def settings(self, text: str) -> None: ...
    def _configure_leniently(self, text: str) -> None:
        """Apply a settings text as PyTorch does: what stands before a fault counts, then SettingsError is raised."""
