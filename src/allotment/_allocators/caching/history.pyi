# Made from history.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.leaks import Alive, Mark
from allotment._allocators.caching.pool import PoolId
from allotment._allocators.parts import Part

class History(Part):
    """What happened to an allocator's memory, and how it lies now: `allocator.history`.

    It records, calls trackers, takes snapshots and finds leaks. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def attach_trace_tracker(self, tracker: Callable[..., None], *, entries: bool = False) -> None:
        """Call `tracker(action, address, size, stream, pool)` at every entry of the trace, until it is detached.

        With `entries`, the tracker gets the whole entry instead, a dictionary as in a snapshot (time, metadata, and the
        stack in "frames" if `record_history` gathers stacks), and the "device", its index.

        It runs inside the allocator, on the thread whose call made the entry, and may call only `free` of the
        allocator. For "oom" the address is the device's free memory. `sys.unraisablehook` gets its exceptions. Raises
        TypeError if it is not callable.
        """
    def detach_trace_tracker(self, tracker: Callable[..., None]) -> None:
        """Stop calling a tracker. A tracker attached twice is called once from now on.

        Raises RequestError if it is not attached.
        """
    def mark(self) -> Mark:
        """Return a mark of this moment, with which `alive` tells earlier allocations from later ones.

        Until the mark is closed or dropped it observes every free, so requests and frees take the slow path: use it to
        find leaks, not permanently. Safe to call from several threads; what other threads do at the same time may count
        as before or after.
        """
    def alive(self, *, before: Mark | None = None, after: Mark | None = None) -> list[Alive]:
        """Return the blocks in use by the place that allocated them, most bytes first; all, or those on one side of a
        mark.

        The place is known for allocations made while stacks were recorded: `record_history("state")`. Visits every
        block. Raises RequestError for both sides at once, or for a mark of another allocator.
        """
    def annotate(self, block: Buffer | int, text: str) -> None:
        """Add a text about a block in use, an address or a `Buffer`, as an entry of the history.

        Raises AddressError if no such block exists, RequestError if the rules in force have no such entry.
        """
    def record(
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
    ) -> None:
        """See `Allocator.record_history`."""
    def is_enabled(self) -> bool:
        """Whether `record_history` is recording. Safe to call from several threads."""
    def _resize_in_place(self) -> None:
        """Make a change of `max_entries` leave entries in place, as in PyTorch: for comparing recordings."""
    def record_annotation(self, pairs: Mapping[str, Any]) -> None:
        """Add your own entry to the history; `snapshot` shows it under "external_annotations".

        It gets the device's index and the time. Does nothing while no history is recorded.
        """
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Return only the segments of `snapshot`; (0, 0) means all, another id means those of that pool.

        Visits every block under the lock, and adds a "snapshot" entry to the trace. Raises PoolError for a pool that
        never existed. Safe to call from several threads.
        """
    def _segments_of(self, pool: PoolId) -> list[dict[str, Any]]:
        """Variant of `segments` that returns none for a pool that never existed, as PyTorch does: for comparisons."""
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """See `Allocator.snapshot`."""
    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open, without creating its dictionaries."""
