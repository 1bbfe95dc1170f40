from _ctypes import CFuncPtr
from collections.abc import Callable
from os import PathLike
from typing import Any, TypeAlias

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.pools import PoolId
from allotment._allocators.pluggable.plugged_memory import PluggedMemory
from allotment._allocators.unsupported import Unsupported
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream

Function: TypeAlias = int | CFuncPtr | Callable[..., Any]

class PluggableAllocator(PluggedMemory):
    pool: Unsupported
    create_or_incref_pool: Unsupported
    close_pool: Unsupported
    pool_reserved_bytes: Unsupported
    set_use_on_oom: Unsupported
    set_no_split: Unsupported
    check_pool_live_allocations: Unsupported
    checkpoint_pool: Unsupported
    restore_pool: Unsupported
    tenant: Unsupported
    tenants: Unsupported
    share: Unsupported
    expandable_segment_sizes: Unsupported
    record_history: Unsupported
    record_annotation: Unsupported
    attach_trace_tracker: Unsupported
    add_free_memory_callback: Unsupported
    remove_free_memory_callback: Unsupported
    limit: Unsupported  # type: ignore[assignment, override]
    settings: Unsupported  # type: ignore[assignment]
    configure: Unsupported  # type: ignore[assignment]
    malloc_as: Unsupported
    pending_events: Unsupported
    check_invariants: Unsupported

    def __init__(
        self,
        alloc: Function,
        free: Function,
        *,
        device: str | Device | None = None,
        device_count: int = 0,
        init: Function | None = None,
        reset: Function | None = None,
        memory_fraction: Function | None = None,
        base_alloc: Function | None = None,
        record_stream: Function | None = None,
        begin_allocate_to_pool: Function | None = None,
        end_allocate_to_pool: Function | None = None,
        release_pool: Function | None = None,
    ) -> None: ...
    @staticmethod
    def from_library(
        path: str | PathLike[str],
        alloc_name: str,
        free_name: str,
        *,
        device: str | Device | None = None,
        device_count: int = 0,
        **hooks: Function | str,
    ) -> PluggableAllocator: ...
    @property
    def name(self) -> str: ...
    def init(self, device_count: int) -> None: ...
    @property
    def caching(self) -> bool: ...
    @caching.setter
    def caching(self, on: bool) -> None: ...
    def malloc(self, size: int, stream: Stream | int = 0, *, device: int | None = None) -> int: ...
    def free(self, address: int, /) -> None: ...
    def empty(self, size: int, stream: Stream | int = 0, *, device: int | None = None) -> Buffer: ...
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None: ...
    def empty_cache(self, pool: PoolId = (0, 0)) -> None: ...
    def base_allocation(self, address: int) -> tuple[int, int]: ...
    def set_memory_fraction(self, fraction: float, device: int | None = None) -> None: ...
    def get_memory_fraction(self, device: int | None = None) -> float: ...
    @property
    def memory_fraction(self) -> float: ...
    @memory_fraction.setter
    def memory_fraction(self, fraction: float) -> None: ...
    def begin_allocate_to_pool(
        self, pool: PoolId, *, accepts: Callable[[int], bool] | None = None, device: int | None = None
    ) -> None: ...
    def end_allocate_to_pool(self, pool: PoolId, *, device: int | None = None) -> None: ...
    def release_pool(self, pool: PoolId, *, device: int | None = None) -> None: ...
    def pool_use_count(self, pool: PoolId, *, device: int | None = None) -> int: ...
    def stats(self, device: int | None = None) -> dict[str, int]: ...
    def nested_stats(self, device: int | None = None) -> dict[str, Any]: ...
    def reset_peak_stats(self, device: int | None = None) -> None: ...
    def reset_accumulated_stats(self, device: int | None = None) -> None: ...
    def cache_info(self, largest: int = 0) -> int: ...
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]: ...
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]: ...
    def dump_snapshot(self, path: str | PathLike[str]) -> None: ...
