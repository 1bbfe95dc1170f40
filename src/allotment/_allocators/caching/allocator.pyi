from collections.abc import Callable, Collection, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import Pool, PoolId, PoolState
from allotment._allocators.caching.tenants import Tenant
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings import Settings
from allotment.errors import OutOfMemoryFacts

class Allocator:
    """A caching allocator over one device.

    `device` is "host", "cuda", "cuda:1", "sim:80GiB", "sim:80GiB#1", or a device object (a `Backend`
    subclass, `SimulatedDevice`, ...). `settings` is a settings string or record, by default what the
    environment variable ALLOTMENT_CONF says; with "backend:cudaMallocAsync" in them an `AsyncAllocator` is made
    instead, over the device's own pool. `limit` caps what may be reserved, in bytes or as "20GiB".

    Safe to use from several threads.
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
    def initialized(self) -> bool:
        """True: an allocator that exists may be in use."""
    def malloc(self, size: int, stream: Stream | int = 0) -> int:
        """Address of `size` bytes for work on `stream`. Size 0 gives 0 and does nothing.

        Raises SizeError, StreamError, OutOfMemoryError, DeviceError.
        """
    def free(self, address: int, /) -> None:
        """Give a block back. If other streams were recorded for it, it is reused only when they are done.

        Freeing 0 does nothing. Raises AddressError for anything that is not a live block's start.
        """
    def empty(self, size: int, stream: Stream | int = 0) -> Buffer:
        """A buffer of `size` bytes that frees itself."""
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None:
        """Declare that work on `stream` uses the block, so that its free waits for that work."""
    def empty_cache(self, pool: PoolId = (0, 0)) -> None:
        """Give unused cached memory back to the device."""
    def stats(self) -> dict[str, int]:
        """All counters, flattened: "allocated_bytes.all.current", ..., sorted by key."""
    def nested_stats(self) -> dict[str, Any]: ...
    def reset_peak_stats(self) -> None: ...
    def reset_accumulated_stats(self) -> None: ...
    def summary(self, abbreviated: bool = False) -> str:
        """The counters as a boxed table for people."""
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """Segments, blocks, history and settings in the form PyTorch's memory tools read.

        All that show one stack share its list of frames.
        """
    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open."""
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Just the segments of `snapshot`; also appends a snapshot entry to the trace."""
    def memory_info(self) -> tuple[int, int]:
        """(free, total) bytes of the device."""
    def tenant(self, name: str) -> Tenant:
        """This allocator for a user with a name, so that `tenants` and snapshots tell whose blocks are whose."""
    def tenants(self) -> dict[str, dict[str, int]]:
        """By name, the "blocks", "allocated_bytes" and "requested_bytes" held now; "" is what has no name.

        Looks at every block. Memory that was allocated while caching was off is not counted.
        """
    @property
    def memory_fraction(self) -> float:
        """The part of the device's memory that may be reserved; 1.0 is no limit."""
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...
    @property
    def limit(self) -> int | None:
        """The most bytes that may be reserved; None is no limit."""
    @limit.setter
    def limit(self, limit: int | str | None) -> None: ...
    @property
    def caching(self) -> bool:
        """Whether requests go through the cache. Off: every request is a device allocation of its own."""
    @caching.setter
    def caching(self, on: bool) -> None: ...
    @property
    def settings(self) -> Settings: ...
    def configure(self, text: str, *, lenient: bool = False) -> None:
        """Apply a settings string now.

        Strict and all-or-nothing; `lenient` keeps what stood before the fault, as PyTorch does, and
        then raises. Raises SettingsError.
        """
    def base_allocation(self, address: int) -> tuple[int, int]:
        """(base, size) of the plain segment that holds the live block at `address`."""
    def cache_info(self, largest: int = 0) -> int:
        """The largest free block, or `largest` if that is more; starts from the device's free memory when 0."""
    def expandable_segment_sizes(self) -> list[tuple[int, bool, int]]:
        """(stream, is_small, mapped bytes) of each expandable segment of a stream other than 0."""
    def add_free_memory_callback(self, callback: Callable[[], bool]) -> None:
        """Call `callback` on every miss; it returns whether it freed anything (it may call `free`)."""
    def remove_free_memory_callback(self, callback: Callable[[], bool]) -> None: ...
    def attach_out_of_memory_observer(self, observer: Callable[[OutOfMemoryFacts], None]) -> None:
        """Call `observer` before an OutOfMemoryError is raised, without any lock held."""
    def attach_trace_tracker(self, tracker: Callable[[str, int, int, int, PoolId], None]) -> None:
        """Call `tracker(action, address, size, stream, pool)` at every trace entry.

        It runs inside the allocator: it must not call back into it. For "oom" the address is the
        device's free memory.
        """
    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Collection[str] | None = None,
    ) -> None:
        """Keep what happens from now on, for `snapshot`; None keeps nothing any more and forgets what was kept.

        `enabled` is "all" for every event, or "state" for what blocks know of themselves alone. `context` says
        what carries the Python stack that led to it: blocks ("state"), allocations too ("alloc"), frees too
        ("all"), or nothing (None). `max_entries` is how many events are kept, the newest of them; None is all.
        `skip_actions` are events to leave out. Raises RequestError.
        """
    def _resize_history_in_place(self) -> None: ...
    def record_annotation(self, pairs: Mapping[str, Any]) -> None:
        """Add an entry of your own to the history; `snapshot` shows it under "external_annotations"."""

    # Private pools, by id; `pool()` is the convenient form.
    def pool(
        self,
        *,
        use_on_oom: bool = False,
        no_split: bool = False,
        allocator: Any = None,
        placement: str | None = None,
    ) -> Pool: ...
    def create_or_incref_pool(self, pool: PoolId, allocator: Any = None, placement: str | None = None) -> None: ...
    def release_pool(self, pool: PoolId) -> None: ...
    def close_pool(self, pool: PoolId) -> None:
        """Release a pool, which lends no more, and what it has cached; from a callback, once that is over."""
    def pool_use_count(self, pool: PoolId) -> int: ...
    def pool_reserved_bytes(self, pool: PoolId) -> int:
        """Physical memory that the pool holds now."""
    def set_use_on_oom(self, pool: PoolId, on: bool) -> None: ...
    def set_no_split(self, pool: PoolId) -> None: ...
    def begin_allocate_to_pool(
        self,
        pool: PoolId,
        *,
        stream: int | None = None,
        thread: int | None = None,
        capture: int | None = None,
        accepts: Callable[[int], bool] | None = None,
    ) -> None:
        """Serve matching requests from `pool` from now on; without a condition, all of them.

        The condition is one of: the request's stream, the requesting thread, the id of the capture the
        stream is in, or a function of the stream.
        """
    def end_allocate_to_pool(self, pool: PoolId) -> None: ...
    def check_pool_live_allocations(self, pool: PoolId, addresses: Collection[int]) -> bool: ...
    def checkpoint_pool(self, pool: PoolId) -> PoolState: ...
    def restore_pool(self, state: PoolState) -> tuple[list[int], list[int]]:
        """(freed, created): addresses freed by the restore, and those in use again."""

    # Other devices and other processes.
    def share(self, address: int) -> tuple[int, bytes]:
        """(offset, handle) for another process: the block lies `offset` bytes into what the handle opens.

        Raises AddressError, UnsupportedError, DeviceError.
        """
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
    def enable_peer_access(self, peer: int) -> None:
        """Let the device of index `peer` touch this one's memory, also what is mapped later."""

    # For tools and tests.
    def malloc_as(self, size: int, stream: int, thread: int) -> int:
        """`malloc` as though called by thread number `thread`: for replaying recordings."""
    def pending_events(self) -> list[tuple[int, int, int]]:
        """(stream, event, block address) of every event waited for, in queue order. Takes no lock when
        called from inside the allocator (a script answering a query)."""
    def check_invariants(self) -> None:
        """Raise InvariantError naming the first rule that does not hold."""
