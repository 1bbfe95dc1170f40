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

    `make_allocator(device, settings="backend:cudaMallocAsync")` gives one of these. It has the operations of an
    `Allocator` that mean something here: no history, no private pools, no tags, because the device does not tell about
    its blocks. The pool is the device's default one, shared with everything else in the process that uses it. `limit`
    is the most bytes that may be in use at once through this allocator.

    Safe to use from several threads; every request calls the device, without the interpreter lock. When the last
    reference goes, all memory goes back to the pool, also what is in use, which a ResourceWarning tells. Raises
    SettingsError, UnsupportedError if the device has no such pool, DeviceError.
    """

    def __init__(
        self, device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
    ) -> None: ...
    @property
    def pools(self) -> AsyncPools:
        """Captures: which requests are a graph's."""
    @property
    def limits(self) -> BasicLimits:
        """How much of the device's memory may be in use through it."""
    @property
    def sharing(self) -> BasicSharing:
        """Which other devices use its memory."""
    @property
    def inspection(self) -> AsyncInspection:
        """Figures and checks, for tools and tests."""
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int:
        """Address of `size` bytes for work on `stream`: a `Stream` or its handle. Size 0 gives 0 and does nothing.

        `stream` is by default the calling thread's current one, else the default one, 0. Every request is a call to the
        device. Raises SizeError, StreamError, OutOfMemoryError, DeviceError. Safe to call from several threads.
        """
    def free(self, address: Buffer | int, /) -> None:
        """Give a block back, in stream order: after what its stream, and those recorded for it, have been given.

        A `Buffer` is closed. Freeing 0 does nothing. During a graph capture, what was allocated before it is freed
        after it (one warning). Raises AddressError for anything that is not a live block's start, DeviceError. Safe to
        call from several threads.
        """
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, an address or a `Buffer`: its free then waits for that work.

        Warns, and does nothing, for the stream that it was allocated on. Raises AddressError, StreamError. Safe to
        call from several threads.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Wait for the device, then let its pool give back everything that is not in use.

        Nothing happens for a pool other than (0, 0): a graph's memory is the graph's own. Raises DeviceError. Safe to
        call from several threads.
        """
    def reset_peak_stats(self) -> None:
        """Let the pool's peaks start anew from what there is now: for all that share the pool. Raises DeviceError."""

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
        """A capture begins: from now on requests of streams that are being captured are the graph's.

        Whose those are the device knows, so the conditions are not looked at; by `capture`, the device's handle,
        several allocators on one device are told of the same capture. Raises CaptureError if another one
        is under way in this process, UnsupportedError for memory kept apart for a thread, or without captures.
        """
    def join_capture(self, stream: Stream | int) -> None:
        """The capture of `stream` is about to end: let it wait for every stream that memory was freed on in it.

        Raises StreamError, DeviceError.
        """
    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """The capture is over; frees that it postponed are done now, or with the next call if others still serve it.

        Raises PoolError if it was not begun.
        """
    def release(self, pool: PoolId) -> None:
        """Nothing: a graph's memory goes with the graph. Raises PoolError for what is not a pool id."""
    @property
    def caching(self) -> bool:
        """True: it is the device that caches. Switching it off raises UnsupportedError."""
    @caching.setter
    def caching(self, on: bool) -> None: ...

class AsyncInspection(BasicInspection):
    """Figures and checks of an `AsyncAllocator`: its `inspection`."""

    def __init__(self, allocator: AsyncAllocator) -> None: ...
    def reset_accumulated_stats(self) -> None:
        """Warns, and does nothing: the device's pool accumulates nothing."""
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """(address, size) of a live block, an address or a `Buffer`. Raises AddressError."""
    def cache_info(self, largest: int = 0) -> int:
        """The largest block that could be had, or `largest` if that is more.

        Found out by asking the device for one of all free memory, of half of it, and so on, which is slow. Raises
        DeviceError.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError if the books do not add up. For tests."""
