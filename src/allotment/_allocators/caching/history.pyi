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

    It records, tells trackers, takes snapshots and finds leaks. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator) -> None: ...
    def attach_trace_tracker(self, tracker: Callable[..., None], *, entries: bool = False) -> None:
        """Call `tracker(action, address, size, stream, pool)` at every entry of the trace, until it is detached.

        With `entries` it is called with the whole entry instead, a dictionary as a snapshot shows it (time, metadata,
        and the stack in "frames" if `record_history` gathers them), and with the "device", its index.

        It runs inside the allocator, on the thread whose call made the entry, and may call nothing of it but `free`.
        For "oom" the address is the device's free memory. What it raises is reported through `sys.unraisablehook`.
        Raises TypeError for what cannot be called.
        """
    def detach_trace_tracker(self, tracker: Callable[..., None]) -> None:
        """Call a tracker no more. One that was attached twice is called once from now on.

        Raises RequestError if it is not attached.
        """
    def mark(self) -> Mark:
        """This moment, for `alive` to tell what was allocated before it from what was allocated after.

        Until it is closed or forgotten it hears of every free, so that requests and frees take the long way: for
        finding leaks, not for good. Safe to call from several threads; what others do at the same time may count as
        before or after.
        """
    def alive(self, *, before: Mark | None = None, after: Mark | None = None) -> list[Alive]:
        """What is in use, by the place that allocated it, the most bytes first; all, or on one side of a mark.

        Places are known of what was allocated while stacks were gathered: `record_history("state")`. Looks at every
        block. Raises RequestError for two sides, or a mark of another allocator.
        """
    def annotate(self, block: Buffer | int, text: str) -> None:
        """Note a text for a block in use, an address or a `Buffer`, as an entry of the history.

        Raises AddressError if there is no such block, RequestError if the rules in force have no such entry.
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
        """Whether `record_history` keeps what happens, now. Safe to call from several threads."""
    def _resize_in_place(self) -> None:
        """Another `max_entries` leaves entries where they are, as PyTorch does: for comparing with what it recorded."""
    def record_annotation(self, pairs: Mapping[str, Any]) -> None:
        """Add an entry of your own to the history: `snapshot` shows it under "external_annotations".

        It gets the device's index and the time. Nothing happens while no history is recorded.
        """
    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """The segments of `snapshot` alone; (0, 0) is all of them, another id those of that pool.

        Looks at every block with the lock held, and adds a "snapshot" entry to the trace. Raises PoolError for a pool
        that never was. Safe to call from several threads.
        """
    def _segments_of(self, pool: PoolId) -> list[dict[str, Any]]:
        """`segments` also of a pool that never was, which has none, as PyTorch says: for comparing with what it did."""
    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """See `Allocator.snapshot`."""
    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open, without making its dictionaries first."""
