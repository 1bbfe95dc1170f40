from collections.abc import Callable
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import PoolId
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings import Settings

class AsyncAllocator:
    """An allocator that leaves all caching to the device's own stream-ordered pool.

    `Allocator(device, settings="backend:cudaMallocAsync")` gives one of these, with the methods of an `Allocator` as
    far as they have a meaning here; every other method of an `Allocator` raises UnsupportedError and says what to
    use instead. The pool is the device's default one, shared with everybody else in the process.

    Safe to use from several threads. Raises UnsupportedError if the device has no such pool.
    """

    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
    ) -> None: ...
    @property
    def device(self) -> Device: ...
    @property
    def name(self) -> str:
        """ "cudaMallocAsync" """
    @property
    def initialized(self) -> bool:
        """True from the start."""
    def malloc(self, size: int, stream: Stream | int = 0) -> int:
        """Address of `size` bytes for work on `stream`. Size 0 gives 0 and does nothing.

        Raises SizeError, StreamError, OutOfMemoryError, DeviceError.
        """
    def free(self, address: int, /) -> None:
        """Give a block back, in stream order: after what its stream, and those recorded for it, have been given.

        Freeing 0 does nothing. During a graph capture, what was allocated before it is freed after it (one
        warning). Raises AddressError for anything that is not a live block's start, DeviceError.
        """
    def empty(self, size: int, stream: Stream | int = 0) -> Buffer:
        """A buffer of `size` bytes that frees itself."""
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work.

        Warns, and does nothing, for the stream that it was allocated on.
        """
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Wait for the device, then let its pool give back everything that nobody uses."""
    def stats(self) -> dict[str, int]:
        """The keys of `Allocator.stats`. "allocated_bytes", "active_bytes" and "reserved_bytes" have what the
        device's pool says for "all", current and peak; the rest is 0."""
    def nested_stats(self) -> dict[str, Any]: ...
    def reset_peak_stats(self) -> None:
        """The pool's peaks start anew from what there is now: for everybody who shares it."""
    def reset_accumulated_stats(self) -> None:
        """Warns, and does nothing: nothing is accumulated."""
    def summary(self, abbreviated: bool = False) -> str:
        """The counters as a boxed table for people."""
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
    def base_allocation(self, address: int) -> tuple[int, int]:
        """(address, size) of the live block at `address`."""
    def cache_info(self, largest: int = 0) -> int:
        """The largest block that could be had, or `largest` if that is more; found out by asking for one of all
        free memory, of half of it, and so on."""
    @property
    def limit(self) -> int | None:
        """The most bytes that may be in use at once through this allocator; None is no limit."""
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    @property
    def memory_fraction(self) -> float:
        """The limit as a part of the device's memory; 1.0 is no limit."""
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...
    @property
    def caching(self) -> bool:
        """True: it is the device that caches. It cannot be switched off."""
    @caching.setter
    def caching(self, on: bool) -> None: ...
    @property
    def settings(self) -> Settings: ...
    def configure(self, text: str, *, lenient: bool = False) -> None:
        """Take note of a settings string; warns of those that the device's pool ignores. Raises SettingsError."""
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

        Whose those are the device knows, so conditions are not looked at. Raises CaptureError if one is under
        way in this process, UnsupportedError for memory kept apart for a thread.
        """
    def join_capture(self, stream: Stream | int) -> None:
        """The capture of `stream` is about to end: let it wait for every stream that memory was freed on in it."""
    def end_allocate_to_pool(self, pool: PoolId) -> None:
        """The capture is over; what was postponed is freed. Raises PoolError if it was not begun."""
    def release_pool(self, pool: PoolId) -> None:
        """Nothing: a graph's memory goes with the graph."""
    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` touch all memory of the pool."""
    def copy(
        self,
        destination: Buffer | int,
        source: Buffer | int,
        size: int,
        stream: Stream | int = 0,
        *,
        source_device: int | None = None,
    ) -> None:
        """Copy `size` bytes in stream order; `source_device` is the index of another device that holds the source.

        Raises StreamError, UnsupportedError, DeviceError.
        """
    def check_invariants(self) -> None:
        """Raise InvariantError if the books do not add up; while no other thread is at work."""
