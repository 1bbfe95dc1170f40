# Made from recording_allocator.pyx by `make stubs`: change it there.

from collections.abc import Callable, Collection, Iterable, Mapping
from os import PathLike
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.caching.engine_allocator import EngineAllocator
from allotment._allocators.caching.leaks import Alive, Mark
from allotment._allocators.caching.pools import PoolId

class RecordingAllocator(EngineAllocator):
    """An engine and its history; users hold an `Allocator`."""

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
    ) -> None:
        """Keep what happens from now on, for `snapshot`; None keeps nothing any more and forgets what was kept.

        `enabled` is "all" for every event, or "state" for what blocks know of themselves alone. `context` says what
        carries the Python stack that led to it: blocks ("state"), allocations too ("alloc"), frees too ("all"), or
        nothing (None). `max_entries` is how many events are kept, the newest of them, at least one; None is all,
        which grows for as long as it runs. `skip_actions` are events to leave out. Each stack is a walk over the Python
        frames.

        `recorder` is a function of yours that gives the stack instead, innermost frame first, each with a "name", a
        "filename" and a "line". It is called by the thread that allocates or frees, before that is done, without any
        lock; requests that it makes itself have no stack, and neither has one for which it raises (what it raises goes
        to `sys.unraisablehook`). C code that calls the entry points gets Python's stack all the same.

        With a `file`, events go there instead of into memory, for as long as it runs, until `record_history` is called
        again or the allocator is closed: a few bytes each, written by a thread of its own. What is at that path is
        replaced. A program that is killed leaves a file that every command reads, up to the last second or so. If the
        disk is slower than the program, requests wait for it; if it fails, what is lost is told in the file and the
        error goes to `sys.unraisablehook`. `max_entries` has no meaning then, and `snapshot` shows no history.

        Raises RequestError, TypeError for a recorder that cannot be called, OSError for a file that cannot be written.
        """
    def is_history_enabled(self) -> bool:
        """Whether `record_history` keeps what happens, now. Safe to call from several threads."""
    def _resize_history_in_place(self) -> None:
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
        """Segments, blocks, history and settings in the form that PyTorch's memory tools read.

        `pool` chooses the segments, as in `segments`; `include_traces` False leaves out the history. All that show
        one stack share its list of frames, so treat them as read-only. Makes a dictionary for each block and event;
        `dump_snapshot` does without. Raises PoolError for a pool that never was. Safe to call from several threads.
        """
    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open, without making its dictionaries first."""
