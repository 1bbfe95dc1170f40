# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable
from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import PoolId
from allotment._allocators.unsupported import Unsupported
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings

class AsyncAllocator(AllocatorBase):
    """An allocator that leaves all caching to the device's own stream-ordered pool.

    `make_allocator(device, settings="backend:cudaMallocAsync")` gives one of these. It has the operations of an
    `Allocator` that mean something here; `unsupported` lists the others and what to use instead. The pool is the
    device's default one, shared with everything else in the process that uses it. `limit` is the most bytes that may
    be in use at once through this allocator.

    Safe to use from several threads; every request calls the device, without the interpreter lock. When the last
    reference goes, all memory goes back to the pool, also what is in use, which a ResourceWarning tells. Raises
    SettingsError, UnsupportedError if the device has no such pool, DeviceError.
    """

    set_limit: Unsupported  # type: ignore[assignment, override]
    on_out_of_memory: Unsupported  # type: ignore[assignment, override]
    pause: Unsupported  # type: ignore[assignment, override]
    resume: Unsupported  # type: ignore[assignment, override]
    resume_in_background: Unsupported  # type: ignore[assignment, override]
    paused: Unsupported  # type: ignore[assignment, override]
    tags: Unsupported  # type: ignore[assignment, override]
    mark: Unsupported  # type: ignore[assignment, override]
    alive: Unsupported  # type: ignore[assignment, override]
    touch: Unsupported  # type: ignore[assignment, override]
    races: Unsupported  # type: ignore[assignment, override]
    snapshot: Unsupported  # type: ignore[assignment, override]
    dump_snapshot: Unsupported  # type: ignore[assignment, override]
    segments: Unsupported  # type: ignore[assignment, override]
    record_history: Unsupported  # type: ignore[assignment, override]
    is_history_enabled: Unsupported  # type: ignore[assignment, override]
    record_annotation: Unsupported  # type: ignore[assignment, override]
    attach_trace_tracker: Unsupported  # type: ignore[assignment, override]
    detach_trace_tracker: Unsupported  # type: ignore[assignment, override]
    expandable_segment_sizes: Unsupported  # type: ignore[assignment, override]
    pending_events: Unsupported  # type: ignore[assignment, override]
    pool: Unsupported  # type: ignore[assignment, override]
    create_or_incref_pool: Unsupported  # type: ignore[assignment, override]
    close_pool: Unsupported  # type: ignore[assignment, override]
    pool_use_count: Unsupported  # type: ignore[assignment, override]
    pool_reserved_bytes: Unsupported  # type: ignore[assignment, override]
    set_use_on_oom: Unsupported  # type: ignore[assignment, override]
    set_no_split: Unsupported  # type: ignore[assignment, override]
    check_pool_live_allocations: Unsupported  # type: ignore[assignment, override]
    checkpoint_pool: Unsupported  # type: ignore[assignment, override]
    restore_pool: Unsupported  # type: ignore[assignment, override]
    tenant: Unsupported  # type: ignore[assignment, override]
    tenants: Unsupported  # type: ignore[assignment, override]
    attach_out_of_memory_observer: Unsupported  # type: ignore[assignment, override]
    detach_out_of_memory_observer: Unsupported  # type: ignore[assignment, override]
    add_free_memory_callback: Unsupported  # type: ignore[assignment, override]
    remove_free_memory_callback: Unsupported  # type: ignore[assignment, override]
    share: Unsupported  # type: ignore[assignment, override]
    share_torch: Unsupported  # type: ignore[assignment, override]
    malloc_as: Unsupported  # type: ignore[assignment, override]
    trim_to: Unsupported  # type: ignore[assignment, override]
    plan: Unsupported  # type: ignore[assignment, override]
    would_fit: Unsupported  # type: ignore[assignment, override]
    malloc_at: Unsupported  # type: ignore[assignment, override]
    annotate: Unsupported  # type: ignore[assignment, override]
    expandable_ranges: Unsupported  # type: ignore[assignment, override]
    set_reserve_class: Unsupported  # type: ignore[assignment, override]

    def __init__(
        self, device: str | Device = "host", *, settings: str | Settings | None = None, limit: int | str | None = None
    ) -> None: ...
    @property
    def name(self) -> str:
        """ "cudaMallocAsync": what PyTorch calls this backend."""
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
    def nested_stats(self) -> dict[str, Any]:
        """The counters of `Allocator.nested_stats`; `stats` has them flattened.

        "allocated_bytes", "active_bytes" and "reserved_bytes" have what the device's pool says for "all", current and
        peak; the rest is 0. A call to the device. Raises DeviceError. Safe to call from several threads.
        """
    def reset_peak_stats(self) -> None:
        """Let the pool's peaks start anew from what there is now: for all that share the pool. Raises DeviceError."""
    def reset_accumulated_stats(self) -> None:
        """Warns, and does nothing: the device's pool accumulates nothing."""
    def base_allocation(self, block: Buffer | int) -> tuple[int, int]:
        """(address, size) of a live block, an address or a `Buffer`. Raises AddressError."""
    def cache_info(self, largest: int = 0) -> int:
        """The largest block that could be had, or `largest` if that is more.

        Found out by asking the device for one of all free memory, of half of it, and so on, which is slow. Raises
        DeviceError.
        """
    @property
    def caching(self) -> bool:
        """True: it is the device that caches. Switching it off raises UnsupportedError."""
    @caching.setter
    def caching(self, on: bool) -> None: ...
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
    def release_pool(self, pool: PoolId) -> None:
        """Nothing: a graph's memory goes with the graph. Raises PoolError for what is not a pool id."""
    def check_invariants(self) -> None:
        """Raise InvariantError if the books do not add up. For tests."""
