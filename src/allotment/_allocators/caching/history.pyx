cimport cython
from libc.stddef cimport size_t
from libc.stdint cimport uint32_t, uint64_t
from libc.stdlib cimport free, malloc

from allotment._allocators.caching.allocator cimport ALLOC, EVERYTHING, NEVER, PACED, STATE, Allocator
from allotment._allocators.caching.history_file cimport HistoryFile
from allotment._allocators.parts cimport Part
from allotment._allocators.upcalls cimport EntryTracker, call_trackers, identity_in
from allotment._core.contract.types cimport address_t
from allotment._core.edge.snapshot cimport segment_dicts, trace_dicts
from allotment._core.edge.snapshot_pickle cimport write_snapshot
from allotment._core.edge.walk cimport Arrangement, arrangement_clear, walk_segments
from allotment._core.edge.words cimport action_number
from allotment._core.engine cimport engine_annotate, engine_leave
from allotment._core.mechanism.pool cimport pool_expect
from allotment._core.model.model cimport Engine, Failure
from allotment._core.placement.dense.dense cimport dense_views
from allotment._core.records.history cimport intern_name
from allotment._core.records.spool cimport spool_flush, spool_place
from allotment._core.records.trace cimport TraceRecord, trace_clear, trace_copy, trace_listen, trace_track
from allotment._core.tools.arguments cimport read_block, read_callable, read_number, read_pool_id

import atexit
import io
import time

from allotment._allocators.caching.history_file import finish_all
from allotment._core.edge.snapshot import assembled
from allotment._core.edge.words import ACTIONS
from allotment.errors import RequestError

cdef dict CONTEXT_LEVELS = {None: NEVER, "state": STATE, "alloc": ALLOC, "all": EVERYTHING}
cdef size_t NO_END = <size_t> 1 << 62
cdef str VIEWS = "allotment_views"
cdef str PROCESS = "allotment_process"

atexit.register(finish_all)


cdef size_t entry_count(object given) except 0:
    cdef uint64_t count = 0
    if not read_number(given, &count):
        raise RequestError(f"record_history: max_entries must be 0 or more, or None for no end, not {given!r}")
    return min(max(count, <uint64_t> 1), NO_END)


@cython.final
cdef class History(Part):
    """History(allocator)\n--\n
    What happened to an allocator's memory, and how it lies now: `allocator.history`.

    It records, calls trackers, takes snapshots and finds leaks. Safe to use from several threads.
    """

    def __cinit__(self, Allocator allocator not None):
        self.allocator = allocator

    # --- the history ---

    def attach_trace_tracker(self, tracker: Callable[..., None], *, entries: bool = False) -> None:
        """Call `tracker(action, address, size, stream, pool)` at every entry of the trace, until it is detached.

        With `entries`, the tracker gets the whole entry instead, a dictionary as in a snapshot (time, metadata, and the
        stack in "frames" if `record_history` gathers stacks), and the "device", its index.

        It runs inside the allocator, on the thread whose call made the entry, and may call only `free` of the
        allocator. For "oom" the address is the device's free memory. `sys.unraisablehook` gets its exceptions. Raises
        TypeError if it is not callable.
        """
        read_callable(tracker, "a tracker")
        if entries:
            tracker = EntryTracker(tracker, self.allocator.rules, self.allocator.device.table.device)
        self.replace_trackers(None, tracker)

    def detach_trace_tracker(self, tracker: Callable[..., None]) -> None:
        """Stop calling a tracker. A tracker attached twice is called once from now on.

        Raises RequestError if it is not attached.
        """
        for attached in self.attached():
            function = (<EntryTracker> attached).tracker if isinstance(attached, EntryTracker) else attached
            if function == tracker and self.replace_trackers(attached, None):
                return
        raise RequestError(f"{tracker!r} is not a tracker of {self.allocator!r}, or it is detached already")

    cdef list attached(self):
        """The trackers. That list never changes; another thread may put another one in its place."""
        cdef list trackers
        self.allocator.enter()
        trackers = self.allocator.trackers
        engine_leave(self.allocator.engine)
        return trackers

    cdef bint replace_trackers(self, object gone, object new) except -1:
        """Remove one tracker, or add one; return False if it is not attached.

        The list that the engine has never changes.
        """
        cdef list before = None
        cdef list after
        cdef bint collects = self.allocator.enter_making_objects()
        try:
            before = self.allocator.trackers
            after = list(before)
            if gone is None:
                after.append(new)
            elif identity_in(before, gone) >= 0:
                del after[identity_in(before, gone)]
            else:
                return False        # another thread was faster
            self.allocator.trackers = after
            if after:
                trace_track(&self.allocator.engine.trace, call_trackers, <void*> after)
            else:
                trace_track(&self.allocator.engine.trace, NULL, NULL)
        finally:
            self.allocator.leave_making_objects(collects)
        return True         # frees the objects of the previous list here, outside the engine

    # --- leaks ---

    def mark(self) -> Mark:
        """Return a mark of this moment, with which `alive` tells earlier allocations from later ones.

        Until the mark is closed or dropped it observes every free, so requests and frees take the slow path: use it to
        find leaks, not permanently. Safe to call from several threads; what other threads do at the same time may count
        as before or after.
        """
        from allotment._allocators.caching import leaks

        return leaks.Mark(self.allocator)

    def alive(self, *, before: Mark | None = None, after: Mark | None = None) -> list[Alive]:
        """Return the blocks in use by the place that allocated them, most bytes first; all, or those on one side of a
        mark.

        The place is known for allocations made while stacks were recorded: `record_history("state")`. Visits every
        block. Raises RequestError for both sides at once, or for a mark of another allocator.
        """
        if before is not None and after is not None:
            raise RequestError("alive: give only one side of a mark, before or after")
        from allotment._allocators.caching import leaks

        mark = before if before is not None else after
        if mark is None:
            return leaks.alive(self.segments(), lambda address: True)
        leaks.check_mark(mark, self.allocator)
        return leaks.alive(self.segments(), lambda address: mark.is_before(address) == (before is not None))

    def annotate(self, block: Buffer | int, text: str) -> None:
        """Add a text about a block in use, an address or a `Buffer`, as an entry of the history.

        Raises AddressError if no such block exists, RequestError if the rules in force have no such entry.
        """
        cdef address_t address = read_block(block)
        cdef uint32_t note = intern_name(text)
        cdef uint32_t context = self.allocator.stack_now() if self.allocator.level >= ALLOC else 0
        cdef Failure failure
        cdef bint ok
        if not self.allocator.rules.annotates_blocks:
            raise RequestError(
                f"PyTorch {self.allocator.rules.version}, whose rules are in force, does not support annotate; "
                "set compat:newest")
        self.allocator.enter()
        ok = engine_annotate(self.allocator.engine, address, note, context, &failure)
        self.allocator.leave(ok, &failure)

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
        cdef Engine* engine = self.allocator.engine
        cdef HistoryFile before
        cdef bint listens, forgets
        cdef int level
        cdef size_t most = NO_END if max_entries is None else entry_count(max_entries)
        cdef uint32_t skip = 0
        if enabled not in (None, "state", "all"):
            raise RequestError(f"record_history: enabled must be 'all', 'state' or None, not {enabled!r}")
        if context not in CONTEXT_LEVELS:
            raise RequestError(f"record_history: context must be 'state', 'alloc', 'all' or None, not {context!r}")
        if stacks not in ("python", "all"):
            raise RequestError(f"record_history: stacks must be 'python' or 'all', not {stacks!r}")
        for name in skip_actions or ():
            if action_number(name) < 0:
                raise RequestError(f"unknown trace action {name!r}; there are {', '.join(ACTIONS)}")
            skip |= (<uint32_t> 1) << action_number(name)
        if enabled == "state":
            most = 1
        if recorder is not None:
            read_callable(recorder, "a recorder")
        if file is not None and (enabled != "all" or max_entries is not None):
            raise RequestError(
                "record_history: a file takes every event; leave out max_entries, and enabled other than 'all'")
        before = self.allocator.present_file()
        if file is not None and before is not None and before.writes_to(file):
            self.end_file()
        streamed = None if file is None else HistoryFile(file)
        listens = enabled is not None
        forgets = not listens or clear_history or file is not None
        level = CONTEXT_LEVELS[context] if listens else NEVER
        if file is not None:
            level = max(level, <int> PACED)
        self.end_file()
        self.allocator.enter()
        if forgets:
            trace_clear(&engine.trace)
        engine.trace.skip = skip
        self.allocator.level = level
        self.allocator.gather = NULL
        engine.trace.attach_stacks = level >= ALLOC
        trace_listen(&engine.trace, listens and file is None, most)
        engine_leave(engine)
        if streamed is not None:
            self.start_file(streamed)
        with cython.critical_section(self.allocator):
            self.allocator.recorder = recorder if listens else None
            self.allocator.most_annotations = most
            if forgets:
                self.allocator.annotations = []   # the old ones free their objects outside the engine's lock

    cdef int start_file(self, HistoryFile file) except -1:
        """Send the history to a file from now on. The arrangement at its begin is of the same moment."""
        cdef Arrangement arrangement
        cdef TraceRecord* none = NULL
        cdef bint ok
        begins = io.BytesIO()
        self.allocator.enter()
        while self.allocator.engine.trace.spool != NULL:    # another thread has begun one meanwhile
            engine_leave(self.allocator.engine)
            self.end_file()
            self.allocator.enter()
        with cython.critical_section(self.allocator):
            self.allocator.file = file    # first: the file must live as long as the engine knows the spool
        with nogil:
            ok = walk_segments(self.allocator.engine, 0, 0, &arrangement)
            if ok:
                self.allocator.engine.trace.spool = &file.spool
                self.allocator.engine.trace.place = spool_place
                trace_listen(&self.allocator.engine.trace, True, 1)
            engine_leave(self.allocator.engine)
        try:
            if not ok:
                raise MemoryError("the host has no memory for a snapshot")
            device = self.allocator.device.table.device
            settings = self.allocator.present_settings().as_pytorch_dict()
            shown = assembled(segment_dicts(&arrangement, device), {}, device + 1, settings, [])
            shown["device"] = device
            shown["torch_version"] = self.allocator.rules.version
            if (views := self.mappings()) is not None:
                shown[VIEWS] = views
            write_snapshot(begins, shown, none, 0, self.allocator.rules)
            file.start(self.allocator, begins.getvalue())
        except BaseException:
            self.end_file()
            raise
        finally:
            arrangement_clear(&arrangement)
        return 0

    cdef int end_file(self) except -1:
        """Write the rest of a history file and close it. Raises the error of writing."""
        cdef HistoryFile file = self.allocator.present_file()
        if file is None:
            return 0
        self.allocator.enter()
        if self.allocator.engine.trace.spool == <void*> &file.spool:
            self.allocator.engine.trace.place = NULL
            self.allocator.engine.trace.spool = NULL
            trace_listen(&self.allocator.engine.trace, False, 1)
            spool_flush(&file.spool)
        with cython.critical_section(self.allocator):
            if self.allocator.file is file:     # and not what another thread has begun since
                self.allocator.file = None
        engine_leave(self.allocator.engine)
        if self.allocator.pointer_holders != 0:
            self.allocator.ended_files.append(file)
        return file.finish()

    def _end_file(self):
        self.end_file()

    def _flush(self):
        """Queue the records that do not fill a batch yet."""
        cdef HistoryFile file = self.allocator.present_file()
        self.allocator.enter()
        if file is not None and self.allocator.engine.trace.spool == <void*> &file.spool:
            spool_flush(&file.spool)
        engine_leave(self.allocator.engine)

    def is_enabled(self) -> bool:
        """Whether `record_history` is recording. Safe to call from several threads."""
        return self.allocator.engine.trace.history

    def _resize_in_place(self) -> None:
        """Make a change of `max_entries` leave entries in place, as in PyTorch: for comparing recordings."""
        self.allocator.engine.trace.in_place = True

    def record_annotation(self, pairs: Mapping[str, Any]) -> None:
        """Add your own entry to the history; `snapshot` shows it under "external_annotations".

        It gets the device's index and the time. Does nothing while no history is recorded.
        """
        cdef HistoryFile file
        if self.allocator.engine.trace.history:
            note = {**pairs, "device": self.allocator.device.table.device, "time_us": time.time_ns() // 1000}
            file = self.allocator.present_file()
            if file is not None:
                file.add_note(note)
                return
            with cython.critical_section(self.allocator):
                self.allocator.annotations = [*self.allocator.annotations, note][-self.allocator.most_annotations:]

    # --- snapshots ---

    def segments(self, pool: PoolId = (0, 0)) -> list[dict[str, Any]]:
        """Return only the segments of `snapshot`; (0, 0) means all, another id means those of that pool.

        Visits every block under the lock, and adds a "snapshot" entry to the trace. Raises PoolError for a pool that
        never existed. Safe to call from several threads.
        """
        cdef uint64_t first, second
        cdef Failure failure
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        ok = pool_expect(self.allocator.engine, first, second, &failure)
        self.allocator.leave(ok, &failure)
        return self._segments_of(pool)

    def _segments_of(self, pool: PoolId) -> list[dict[str, Any]]:
        """Variant of `segments` that returns none for a pool that never existed, as PyTorch does: for comparisons."""
        cdef Arrangement arrangement
        cdef uint64_t first, second
        cdef bint ok
        read_pool_id(pool, &first, &second)
        self.allocator.enter()
        with nogil:
            ok = walk_segments(self.allocator.engine, first, second, &arrangement)
            engine_leave(self.allocator.engine)
        try:
            if not ok:
                raise MemoryError("the host has no memory for a snapshot")
            return segment_dicts(&arrangement, self.allocator.device.table.device)
        finally:
            arrangement_clear(&arrangement)

    cdef TraceRecord* copy_history(self, size_t* count) except NULL:
        """Return the records of the history, oldest first; the caller frees them."""
        cdef TraceRecord* copies
        self.allocator.enter()
        count[0] = self.allocator.engine.trace.stored
        copies = <TraceRecord*> malloc((count[0] + 1) * sizeof(TraceRecord))
        if copies != NULL:
            trace_copy(&self.allocator.engine.trace, copies)
        engine_leave(self.allocator.engine)
        if copies == NULL:
            raise MemoryError("the host has no memory for a snapshot")
        return copies

    cdef list entries(self):
        """Return the trace as dictionaries, oldest first."""
        cdef size_t count = 0
        cdef TraceRecord* copies = self.copy_history(&count)
        try:
            return trace_dicts(copies, count, self.allocator.rules)
        finally:
            free(copies)

    def snapshot(self, pool: PoolId = (0, 0), include_traces: bool = True) -> dict[str, Any]:
        """See `Allocator.snapshot`."""
        annotations = [dict(annotation) for annotation in self.allocator.present_annotations()]
        traces = self.entries() if include_traces else []
        device = self.allocator.device.table.device
        settings = self.allocator.present_settings().as_pytorch_dict()
        shown = assembled(self.segments(pool), {device: traces}, device + 1, settings, annotations)
        views = self.mappings()
        if views is not None:
            shown[VIEWS] = views
        from allotment._process.ledger import process_parts

        parts = process_parts(self.allocator)
        if parts is not None:
            shown[PROCESS] = {"device": device, "bytes": parts}
        return shown

    cdef list mappings(self):
        """Return where memory with several addresses is mapped: chunk, size, region, address; None without any."""
        self.allocator.enter()
        try:
            return dense_views(self.allocator.engine)
        finally:
            engine_leave(self.allocator.engine)

    def dump_snapshot(self, path: str | PathLike[str]) -> None:
        """Write `snapshot()` to a file that PyTorch's memory tools open, without creating its dictionaries."""
        cdef size_t count = 0
        cdef TraceRecord* copies
        from allotment._allocators.files import replaced

        with replaced(path) as file:
            copies = self.copy_history(&count)
            try:
                write_snapshot(file, self.snapshot(include_traces=False), copies, count, self.allocator.rules)
            finally:
                free(copies)
