from collections.abc import Callable
from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import PoolId
from allotment._allocators.unsupported import Unsupported
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings import Settings

class AsyncAllocator(AllocatorBase):
    snapshot: Unsupported
    dump_snapshot: Unsupported
    segments: Unsupported
    record_history: Unsupported
    record_annotation: Unsupported
    attach_trace_tracker: Unsupported
    expandable_segment_sizes: Unsupported
    pending_events: Unsupported
    pool: Unsupported
    create_or_incref_pool: Unsupported
    close_pool: Unsupported
    pool_use_count: Unsupported
    pool_reserved_bytes: Unsupported
    set_use_on_oom: Unsupported
    set_no_split: Unsupported
    check_pool_live_allocations: Unsupported
    checkpoint_pool: Unsupported
    restore_pool: Unsupported
    tenant: Unsupported
    tenants: Unsupported
    attach_out_of_memory_observer: Unsupported  # type: ignore[assignment]
    add_free_memory_callback: Unsupported
    remove_free_memory_callback: Unsupported
    share: Unsupported
    malloc_as: Unsupported
    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
    ) -> None: ...
    @property
    def name(self) -> str: ...
    def malloc(self, size: int, stream: Stream | int = 0) -> int: ...
    def free(self, address: int, /) -> None: ...
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None: ...
    def empty_cache(self, pool: PoolId = (0, 0)) -> None: ...
    def nested_stats(self) -> dict[str, Any]: ...
    def reset_peak_stats(self) -> None: ...
    def reset_accumulated_stats(self) -> None: ...
    def base_allocation(self, address: int) -> tuple[int, int]: ...
    def cache_info(self, largest: int = 0) -> int: ...
    @property
    def caching(self) -> bool: ...
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
    ) -> None: ...
    def join_capture(self, stream: Stream | int) -> None: ...
    def end_allocate_to_pool(self, pool: PoolId) -> None: ...
    def release_pool(self, pool: PoolId) -> None: ...
    def check_invariants(self) -> None: ...
