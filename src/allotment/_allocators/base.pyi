# Made from base.pyx by `make stubs`: change it there.

from types import TracebackType
from typing import Any, Self

from numpy.typing import NDArray

from allotment._allocators.buffer import Buffer
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings

class AllocatorBase:
    """Base of every kind of allocator. Users hold one of the kinds."""

    def __enter__(self) -> Self: ...
    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None: ...
    def close(self) -> None:
        """Return all memory that is not in use to the device, and serve no more requests.

        A ResourceWarning reports the blocks that are in use. They can still be freed, and the figures can still be
        read. A second call does nothing. Raises RequestError if C code has its entry points, and DeviceError.
        """
    @property
    def closed(self) -> bool:
        """Whether it is closed. Requests then raise RequestError."""
    @property
    def device(self) -> Device:
        """Device that the memory belongs to: its `name`, `index` and `capabilities`."""
    def empty(self, size: int | str, stream: Stream | int | None = None) -> Buffer:
        """Return a buffer of `size` bytes for work on `stream`. It frees itself when the last reference to it is
        dropped.

        `size` is a number of bytes or text such as "1MiB". Without a stream, the buffer is for the calling thread's
        current stream, else the default stream. Memory that this process can read is then also ready for the calling
        thread: the call waits until no queued work uses it. With a stream, the call waits for nothing, and work on that
        stream may use the buffer. Raises what `malloc` raises. Safe to call from several threads.
        """
    def array(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return a NumPy array on this allocator's memory, uninitialized. The array keeps its block alive.

        The calling thread may use the array at once: the call waits for the work queued on `stream` that may still use
        the memory. `stream` is by default the calling thread's current stream, else the default stream. A function that
        runs on a stream does not wait; a caching allocator gives it other memory if needed. For a stream in a graph
        capture, the call waits only for the work before the capture.

        Raises UnsupportedError for memory that this process cannot read, TypeError for a dtype that holds Python
        objects, and what `malloc` raises. Safe to call from several threads.
        """
    def zeros(
        self, shape: int | tuple[int, ...], dtype: Any = "float64", *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return an `array` that the calling thread has filled with zeros."""
    def full(
        self, shape: int | tuple[int, ...], value: Any, dtype: Any = None, *, stream: Stream | int | None = None
    ) -> NDArray[Any]:
        """Return an `array` that the calling thread has filled with a value.

        Its dtype is by default that of the value.
        """
    def like(self, array: Any, *, stream: Stream | int | None = None) -> NDArray[Any]:
        """Return an `array` with the shape and dtype of another. It is uninitialized: the values are not copied."""
    def _ready(self, size: int, stream: Stream | int | None = None) -> Buffer:
        """Return an `empty` buffer that the calling thread may touch at once, even for a given stream."""
    def _block_around(self, address: int) -> tuple[int, int] | None:
        """Return (start, size) of the live block that contains an address; None if no block of this allocator does."""
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

        `stream` is by default the calling thread's current stream, else the default stream. `source` and `destination`
        are each a buffer, an object with the buffer protocol such as an array, or an address in a live block. All bytes
        must lie in that memory, or AddressError or SizeError is raised. An address that no allocator here knows is
        refused on host memory; other devices decide themselves. `source_device` and `destination_device` are the
        indexes of other devices that hold the memory. Returns at once; the copy is done when the stream has reached it.
        Raises StreamError, UnsupportedError if the device cannot copy, and DeviceError. Safe to call from several
        threads.
        """
    def stats(self) -> dict[str, int]:
        """Return all counters, flattened and sorted by key: {"allocated_bytes.all.current": 512, ...}.

        Creates about a hundred small objects and briefly holds the allocator's lock. Safe to call from several threads.
        """
    def memory_info(self) -> tuple[int, int]:
        """Return (free, total) bytes of the device, as the device reports them.

        Calls the device. Raises UnsupportedError if the device does not report this, and DeviceError. Safe to call from
        several threads.
        """
    def process(self) -> dict[str, Any]:
        """Return what this process holds on the device, by library, including what nothing explains; all in bytes.

        The keys are "libraries" (by name), "context", "modules", "unexplained", and their "total", which is the
        driver's figure for this process. Raises UnsupportedError unless the process was started by `python -m
        allotment.preload`. Calls the driver, and visits every block. Safe to call from several threads.
        """
    @property
    def limit(self) -> int | None:
        """The most bytes that this allocator may hold, or None. Set it to bytes, to text such as "20GiB", or to None.

        Memory that it already holds stays. Setting raises SettingsError for a value that is not a size.
        """
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    @property
    def settings(self) -> Settings:
        """The settings in force, as a `Settings` record. Assign a text to change them: "max_split_size_mb:64".

        Assigning changes the keys that the text names, all of them or, if one is wrong, none; other keys stay. Memory
        that the allocator already holds stays as it is. Assign from one thread at a time. Assigning raises
        SettingsError.
        """
    @settings.setter
    def settings(self, text: str) -> None: ...
    def _configure_leniently(self, text: str) -> None:
        """Apply a settings text as PyTorch does: apply what precedes a fault, then raise SettingsError."""
