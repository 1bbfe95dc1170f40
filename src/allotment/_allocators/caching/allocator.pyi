# Made from allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.base import AllocatorBase
from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.history import History
from allotment._allocators.caching.inspection import Inspection
from allotment._allocators.caching.limits import Limits
from allotment._allocators.caching.plan import Plan
from allotment._allocators.caching.pool import Pool, PoolId
from allotment._allocators.caching.pools import Pools
from allotment._allocators.caching.sanitizer.watch import Sanitizer
from allotment._allocators.caching.sharing import Sharing
from allotment._allocators.caching.sleep import Sleep
from allotment._allocators.caching.tenants import Tenant
from allotment._core.contract.table import Device
from allotment._devices.streams import Stream
from allotment._settings.record import Settings
from allotment._sharing.handle import SharedHandle
from allotment.errors import OutOfMemoryFacts

class Allocator(AllocatorBase):
    def __init__(
        self,
        device: str | Device = "host",
        *,
        settings: str | Settings | None = None,
        limit: int | str | None = None,
        sanitize: bool = False,
    ) -> None: ...
    @property
    def history(self) -> History: ...
    @property
    def pools(self) -> Pools: ...
    @property
    def limits(self) -> Limits: ...
    @property
    def sleep(self) -> Sleep: ...
    @property
    def sharing(self) -> Sharing: ...
    @property
    def inspection(self) -> Inspection: ...
    def malloc(self, size: int | str, stream: Stream | int | None = None) -> int: ...
    def free(self, address: Buffer | int, /) -> None: ...
    def record_stream(self, block: Buffer | int, stream: Stream | int) -> None: ...
    def _empty_quarantine(self) -> bool: ...
    @property
    def _sanitizer(self) -> Sanitizer | None: ...
    def _note_streams(self, last: bool) -> None: ...
    def reset_peak_stats(self) -> None: ...
    def tenants(self) -> dict[str, dict[str, int]]: ...
    def tenant(self, name: str) -> Tenant: ...
    def pool(
        self, *, use_on_oom: bool = False, no_split: bool = False, allocator: Any = None, placement: str | None = None
    ) -> Pool: ...
    def empty_cache(self, pool: PoolId = (0, 0)) -> None: ...
    def trim_to(self, size: int | str) -> int: ...
    def plan(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> Plan: ...
    def would_fit(self, requests: Iterable[int | str | tuple[int | str, Stream | int]]) -> bool: ...
    def set_limit(
        self,
        tag: str | Pool | Tenant | None,
        *,
        hard: int | str | None = ...,
        soft: int | str | None = ...,
        reserved: int | str | None = ...,
    ) -> None: ...
    def on_out_of_memory(self, step: Callable[[OutOfMemoryFacts], bool], *, tries: int = 1) -> Callable[[], None]: ...
    def pause(
        self,
        tag: str | Pool | Tenant,
        *,
        keep: str = "host",
        keep_host: bool = False,
        folder: str | PathLike[str] | None = None,
        host_limit: int | str | None = None,
        progress: Callable[[int, int], None] | bool | None = None,
    ) -> int: ...
    def resume(
        self, tag: str | Pool | Tenant, *, progress: Callable[[int, int], None] | bool | None = None
    ) -> None: ...
    def paused(self) -> set[str | PoolId]: ...
    def share(self, block: Buffer | int, *, hold: float = 60.0) -> SharedHandle: ...
    def share_torch(self, block: Buffer | int) -> tuple[int, bytes]: ...
    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Collection[str] | None = None,
        recorder: Callable[[], Iterable[Mapping[str, Any]]] | None = None,
        file: str | PathLike[str] | None = None,
    ) -> None: ...
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]: ...
