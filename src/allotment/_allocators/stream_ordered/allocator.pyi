# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pool import PoolId
from allotment._allocators.parts import BasicInspection, BasicLimits, BasicSharing, Part
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings

class AsyncAllocator(AllocatorBase):
    """An allocator that leaves all caching to the device's own stream-ordered pool.

    `make_allocator(device, settings="backend:cudaMallocAsync")` returns one of these. It has those operations of an
    `Allocator` that have a meaning here: no history, no private pools, no tags, because the device does not report its
    blocks. The pool is the device's default one, shared with all other users of it in the process. `limit` is the most
    bytes that may be in use at once through this allocator.

    Safe to use from several threads; every request calls the device, without the interpreter lock. When the last
    reference is dropped, all memory returns to the pool, including memory in use, which a ResourceWarning reports.
    Raises SettingsError, UnsupportedError if the device has no such pool, and DeviceError.
    """

    def __init__(
        self, device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
    ) -> None: ...
    @property
    def pools(self) -> AsyncPools:
        """Captures: which requests belong to a graph."""
    @property
    def limits(self) -> BasicLimits:
        """How much of the device's memory may be in use through it."""
    @property
    def sharing(self) -> BasicSharing:
        """Other devices that use its memory."""
    @property
    def inspection(self) -> AsyncInspection:
        """Figures and checks, for tools and tests."""
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Return the address of `size` bytes for work on `stream`, a `Stream` or its handle. Size 0 returns 0.

        `stream` is by default the calling thread's current stream, else the default stream, 0. Every request calls the
        device. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from several threads.
        """
    def free(self, address: Buffer | int, /) -> None:
        """Free a block in stream order: after the work submitted so far to its stream and to those recorded for it.

        A `Buffer` is closed. Freeing 0 does nothing. During a graph capture, memory allocated before it is freed after
        it (with one warning). Raises AddressError for an address that is not the start of a live block, and
        DeviceError. Safe to call from several threads.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        Warns, and does nothing, for the stream of the allocation. Raises AddressError, StreamError. Safe to call from
        several threads.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Wait for the device, then make its pool release everything that is not in use.

        Does nothing for a pool other than (0, 0): the graph owns its memory. Raises DeviceError. Safe to call from
        several threads.
        """
    def reset_peak_stats(self) -> None:
        """Reset the pool's peaks to the current values, for all users of the pool. Raises DeviceError."""

class AsyncPools(Part):
    """Which requests of an `AsyncAllocator` are a captured graph's: its `pools`. The device keeps the memory apart."""

    def __init__(self, allocator: AsyncAllocator) -> None: ...
    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Begin a capture: from now on, requests of streams that are being captured belong to the graph.

        The device knows which requests these are, so the conditions are ignored. With `capture`, the device's handle,
        several allocators on one device can take part in the same capture. Raises CaptureError if another capture is in
        progress in this process; UnsupportedError for memory reserved for a thread, or without captures.
        """
    def join_capture(self, stream: Stream | int) -> None:
        """Before the capture of `stream` ends, make it wait for every stream on which memory was freed in the capture.

        Raises StreamError, DeviceError.
        """
    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """End the capture. Frees that it postponed are done now, or with the next call if others still serve it.

        Raises PoolError if it was not begun.
        """
    def release(self, pool: PoolId) -> None:
        """Do nothing: a graph's memory ends with the graph. Raises PoolError for an invalid pool id."""
    @property
    def caching(self) -> bool:
        """True: the device caches. Switching it off raises UnsupportedError."""
    @caching.setter
    def caching(self, on: bool) -> None: ...

class AsyncInspection(BasicInspection):
    """Figures and checks of an `AsyncAllocator`: its `inspection`."""

    def __init__(self, allocator: AsyncAllocator) -> None: ...
    def reset_accumulated_stats(self) -> None:
        """Warn and do nothing: the device's pool accumulates nothing."""
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """Return (address, size) of a live block, an address or a `Buffer`. Raises AddressError."""
    def cache_info(self, largest: int = 0) -> int:
        """Return the size of the largest block that could be allocated, or `largest` if that is larger.

        Finds it by requesting all free memory from the device, then half of it, and so on, which is slow. Raises
        DeviceError.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError if the records do not add up. For tests."""
