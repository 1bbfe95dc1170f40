from collections.abc import Callable, Collection, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.caching.engine_allocator import EngineAllocator
from allotment._allocators.caching.pools import PoolId

class RecordingAllocator(EngineAllocator):
    def attach_trace_tracker(self, tracker: Callable[[str, int, int, int, PoolId], None]) -> None: ...
    def record_history(
        self,
        enabled: str | None = "all",
        context: str | None = "all",
        *,
        stacks: str = "python",
        max_entries: int | None = None,
        clear_history: bool = False,
        skip_actions: Collection[str] | None = None,
    ) -> None: ...
    def record_annotation(self, pairs: Mapping[str, Any]) -> None: ...
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]: ...
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]: ...
    def dump_snapshot(self, path: str | PathLike[str]) -> None: ...
