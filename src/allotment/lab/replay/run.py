"""Runs a recorded history through the engine: exactly under its own settings, or under others for comparison.

Under its own settings the replay gets from the recording only what an allocator cannot decide (where the device put its
segments and when other streams were done), and every entry is compared with the recording. Under other settings or with
another capacity it makes the same requests in the same order; frees that waited for other streams complete at the same
request. A request that runs out of memory is counted and skipped, together with its free.
"""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from importlib.resources import files
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from allotment import _settings as config
from allotment._core.edge.words import Action
from allotment._formats.history_file import HISTORY_FIELD
from allotment._formats.torch_snapshot import Snapshot, Stack, Trace, naming, read_snapshot
from allotment._rules import rules_of
from allotment._settings import Settings
from allotment._settings.pytorch_form import STRING
from allotment._texts import printable
from allotment.errors import FormatError, RequestError, SettingsError
from allotment.lab.replay import version
from allotment.lab.replay.gate import check_snapshot
from allotment.lab.replay.loop import Replay, rounded_sizes
from allotment.lab.replay.moment import Deeds, Moment
from allotment.lab.replay.records import Kind
from allotment.lab.replay.replay_inputs import ReplayInputs
from allotment.lab.replay.result import Difference, Result, block_shown, entry_shown
from allotment.lab.replay.workload import ABOUT_MEMORY, History, paced, peak_active

__all__ = [
    "SAMPLE",
    "Recording",
    "devices_with_history",
    "has_history",
    "read_capacity",
    "read_recording",
    "read_source",
    "recording_of",
    "sample_entries_per_second",
]

SAMPLE = "sample"
"""The name of the recording that comes with the package."""
STANDARD_INPUT = "-"
STEP = 2 << 20
"""The step of the search for the smallest capacity."""
MOST_CAPACITY = 1 << 55
LEAST_CAPACITY = 1 << 20
"""The smallest capacity: `80` almost certainly means 80 GiB, not 80 bytes."""
MOST_SAMPLES = 512
DENSE = "dense"
VIEWS = "allotment_views"
"""A field that only a snapshot of dense placement has: where each chunk is mapped."""
Progress = Callable[[str], None]


def read_recording(
    source: str | os.PathLike[str] | bytes | BinaryIO,
    device: int | None = None,
    progress: Progress = lambda what: None,
    compat: str | None = None,
) -> Recording:
    """Read a snapshot and make a workload of one device's history: of the longest one, unless `device` is given.

    `compat` is the version of PyTorch that wrote it, if known; otherwise it is inferred, see `version`.

    Raises FormatError, and OSError if the file cannot be read; both name the file.
    """
    progress("reading")
    snapshot = read_source(source)
    with naming(source):
        return recording_of(snapshot, device, progress, compat)


def read_source(source: str | os.PathLike[str] | bytes | BinaryIO) -> Snapshot:
    """Read a snapshot: "-" is standard input, "sample" the packaged one.

    Raises FormatError and OSError, as `read_recording`.
    """
    if source == STANDARD_INPUT:
        return read_snapshot(sys.stdin.buffer)
    if source == SAMPLE and not os.path.exists(SAMPLE):
        source = files("allotment._samples").joinpath("streams_prefetch.pickle.gz").read_bytes()
    return read_snapshot(source)


def read_capacity(text: str) -> int:
    """Parse the size of a device. Raises RequestError for a size that no device has, and SettingsError."""
    size = config.parse_size(text)
    if not LEAST_CAPACITY <= size <= MOST_CAPACITY:
        raise RequestError(f"invalid capacity {text!r}: {size} bytes; give 1MiB to {MOST_CAPACITY} bytes")
    return size


def has_history(snapshot: Snapshot) -> bool:
    """Whether a snapshot has a history, and not only the state at its end."""
    return bool(devices_with_history(snapshot))


def devices_with_history(snapshot: Snapshot) -> list[int]:
    """The devices that a snapshot has a history of."""
    return [trace.device for trace in snapshot.traces if np.any(np.isin(trace.action, ABOUT_MEMORY))]


def recording_of(
    snapshot: Snapshot,
    device: int | None = None,
    progress: Progress = lambda what: None,
    compat: str | None = None,
) -> Recording:
    """Return the recording in a snapshot, with the rules of the version that wrote it."""
    possible = version.possible_versions(snapshot, _choose_trace(snapshot, device))
    if compat is not None and compat in possible:
        return Recording(snapshot, device, progress, compat, "given")
    if (named := version.named_version(snapshot)) is not None:
        return Recording(snapshot, device, progress, named, "field")
    if len(possible) == 1:
        return Recording(snapshot, device, progress, possible[0], "marks")
    newest = Recording(snapshot, device, progress, possible[0], "reproduced")
    if newest.reproduces:
        return newest
    for other in version.that_decide_differently(possible)[1:]:
        recording = Recording(snapshot, device, progress, other, "reproduced")
        if recording.reproduces:
            return recording
    newest.compat_source = "assumed"
    return newest


class Recording:
    """A device's history, ready to be replayed."""

    def __init__(
        self,
        snapshot: Snapshot,
        device: int | None = None,
        progress: Progress = lambda what: None,
        compat: str | None = None,
        compat_source: version.CompatSource = "assumed",
    ) -> None:
        """`compat` is the version that recorded it; by default the oldest that can have written it."""
        trace = _choose_trace(snapshot, device)
        self.device = trace.device
        self.entries = len(trace)
        self.compat = compat or version.possible_versions(snapshot, trace)[-1]
        self.compat_source: version.CompatSource = compat_source
        self.settings = _recorded_settings(snapshot, trace.action, self.compat)
        check_snapshot(snapshot, trace)
        self.snapshot = snapshot
        """The snapshot that it was read from."""
        progress("inferring the calls")
        self._history = History(trace, moves=self.settings.placement == DENSE)
        self._premises = ReplayInputs(self._history, snapshot, self.device, self.settings)
        if self._can_be_compared and (self._history.releases or np.any(self._history.action == Action.OOM)):
            progress("inferring the pools")
            self._premises.infer()

    @property
    def reproduces(self) -> bool:
        """Whether there is a history, and the replay reproduced every decision in it."""
        return self.entries > 0 and self._can_be_compared and self._as_recorded().matches_recording is True

    # --- replaying -------------------------------------------------------------------------------------------------

    def replay(self, settings: Settings | str | None = None, capacity: int | None = None) -> Result:
        """Replay under `settings` on a device of `capacity` bytes; without either, as recorded, with a comparison.

        Raises SettingsError.
        """
        if self._is_recorded(settings, capacity):
            return self._as_recorded()
        settings = self.resolved(settings)
        run = self._prepared(settings, capacity)
        refused_before = run.refused
        run.begin_window()
        samples = self._sampled(run)
        what = "other settings than the recorded ones" if settings != self.settings else "a given capacity"
        if capacity is None and settings == self.settings:
            what = "dense placement, as recorded; its decisions are not compared"
        if settings.compat != self.compat:
            what = f"the rules of PyTorch {settings.compat}, and recorded by {self.compat}"
        reason = f"replayed under {what}: there is nothing to compare with"
        result = self._result(run, settings, samples, None, reason, None)
        return replace(result, ooms=result.ooms + refused_before)

    def trial(
        self, settings: Settings, capacity: int | None = None, share: float = 1.0, pace: float = 1.0
    ) -> tuple[int, float, int, int]:
        """Return the figures by which replays are compared: peak reserved, driver milliseconds, out of memory, waits.

        Replays the first `share` of the history; earlier blocks may be anywhere. `pace` is as for `paced`.
        """
        if self._is_recorded(settings, capacity) and share == pace == 1.0:
            result = self._as_recorded()
            return result.peak_reserved_bytes, result.driver_ms, result.ooms, result.waits
        run = self._prepared(settings, capacity)
        refused_before = run.refused
        run.begin_window()
        calls = self.calls if pace == 1.0 else paced(self.calls, pace)
        run.run(calls[: math.ceil(share * len(calls))])
        figures, waits = run.figures(), int(run.driver()["waits"])
        return int(figures["peak_reserved_bytes"]), float(run.driver_ms), int(figures["ooms"]) + refused_before, waits

    def fits(self, capacity: int, settings: Settings | str | None = None) -> bool:
        """Whether no request ends out of memory on a device of `capacity` bytes."""
        run = self._prepared(self.resolved(settings), capacity)
        return run.refused == 0 and run.run(self.calls, stop_at_refusal=True)

    def fit(self, settings: Settings | str | None = None, progress: Progress = lambda what: None) -> int | None:
        """Return the smallest capacity, in steps of 2 MiB, on which no request runs out of memory, or None.

        Fitting is not monotone: a little less memory can lead to a luckier placement. So bisection finds a capacity,
        and the search then steps down as long as the next smaller one fits too.
        """
        settings = self.resolved(settings)
        roomy = self.replay(settings, self._premises.roomy)
        low = min(roomy.peak_active_bytes, roomy.peak_reserved_bytes) // STEP - 1
        high = -(-roomy.peak_reserved_bytes // STEP)
        while not self.fits(high * STEP, settings):
            low, high = high, high + max(1, high // 8)
            if high * STEP > MOST_CAPACITY:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            progress(f"trying {middle * STEP / (1 << 30):.2f} GiB")
            low, high = (low, middle) if self.fits(middle * STEP, settings) else (middle, high)
        while high > 1 and self.fits((high - 1) * STEP, settings):
            high -= 1
        return high * STEP

    # --- looking back ------------------------------------------------------------------------------------------------

    @property
    def calls(self) -> NDArray[np.void]:
        """The calls in order: `CALL` records."""
        return self._premises.workload.calls

    @property
    def all_calls(self) -> tuple[NDArray[np.void], int]:
        """The calls, preceded by those that lead to the state before them, and the number of the latter."""
        return self._premises.all_calls

    def entry_of(self, call: int) -> int:
        """Return the index in the file's history of a call's entry; -1 before the first."""
        entries = self._premises.workload.entries
        return int(self._history.kept[min(int(entries[call]), len(self._history) - 1)]) if call >= 0 else -1

    @property
    def waiting_frees(self) -> int:
        """Return how many frees waited for other streams."""
        return int(np.count_nonzero(self.calls["kind"] == Kind.FREE_SHARED))

    @property
    def call_entries(self) -> NDArray[np.int64]:
        """Return by call the index of its entry in the file's history."""
        last = len(self._history) - 1
        return np.asarray(self._history.kept[np.minimum(self._premises.workload.entries, last)])

    @property
    def trace(self) -> Trace:
        """The history as it is in the file."""
        return next(trace for trace in self.snapshot.traces if trace.device == self.device)

    @property
    def stacks(self) -> tuple[Stack, ...]:
        """The stacks that `stacks_of_all` numbers."""
        return self.snapshot.stacks

    @property
    def allocated_at(self) -> NDArray[np.int64]:
        """Return by life the entry in the file's history that allocated it; -1 if that was before."""
        history = self._history
        found = np.full(self._premises.initial.block_count, -1, dtype=np.int64)
        seen = np.flatnonzero(history.allocated_at >= 0)
        found[seen] = history.kept[history.allocated_at[seen]]
        return found

    def lives_at(self, addresses: NDArray[np.uint64], entries: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the last life that began at each address before an entry of the file's history; -1 if unknown."""
        history = self._history
        # Lives are numbered by address, then by time.
        known, rank = np.unique(history.address[history.first_entry], return_inverse=True)
        if len(known) == 0:
            return np.full(len(addresses), -1, dtype=np.int64)
        began = np.where(history.was_there, 0, history.kept[history.first_entry])
        place = np.minimum(np.searchsorted(known, addresses), len(known) - 1)
        span = len(self.trace) + 1
        life = np.searchsorted(rank * span + began, place * span + entries, "right") - 1
        is_there = (known[place] == addresses) & (life >= 0) & (rank[np.maximum(life, 0)] == place)
        return np.where(is_there, life, -1)

    def curve(self, settings: Settings | str | None = None, capacity: int | None = None) -> NDArray[np.uint64]:
        """Return bytes active and reserved after each call: as recorded, or under `settings` and `capacity`."""
        run = self._started(settings, capacity)
        samples = np.zeros((len(self.calls), 2), dtype=np.uint64)
        run.sample(samples, 1)
        run.run(self.calls)
        return samples

    def moment(self, calls: int, settings: Settings | str | None = None, capacity: int | None = None) -> Moment:
        """Return memory after the first `calls` calls: as recorded, or under other settings as in `curve`."""
        run = self._started(settings, capacity)
        run.run(self.calls[:calls])
        return Moment(*run.moment())

    def in_use(self) -> NDArray[np.int64]:
        """Bytes requested and not yet freed, before the first call and after each call; the same under all settings.

        Memory that the program freed and that waits for other streams is not in use.
        """
        calls, before = self._premises.all_calls
        block, has_block = calls["block"], calls["block"] >= 0
        asks = has_block & (calls["kind"] == Kind.MALLOC)
        frees = has_block & np.isin(calls["kind"], (Kind.FREE, Kind.FREE_SHARED))
        size = np.zeros(int(block.max(initial=-1)) + 1, dtype=np.int64)
        size[block[asks]] = calls["size"][asks]
        change = np.zeros(len(calls) + 1, dtype=np.int64)
        change[1:][asks] = size[block[asks]]
        change[1:][frees] = -size[block[frees]]
        return np.asarray(np.cumsum(change)[before:])

    def deeds(self, settings: Settings | str | None = None, capacity: int | None = None) -> Deeds:
        """Return what a replay does, under `settings` on a device of `capacity` bytes; without either, as recorded."""
        initial, matches, reason = self._premises.initial, None, None
        run = self._started(settings, capacity, journal=True)
        run.run(self.calls)
        if self._is_recorded(settings, capacity):
            matches, reason = self._verdict(self._described(run.difference) or self._difference_at_end(run))
        figures = run.figures()
        return Deeds(
            initial.requests,
            initial.frees,
            *run.block_places,
            segments=run.segment_events,
            late_frees=run.late_frees,
            matches_recording=matches,
            reason=reason,
            ooms=figures["ooms"],
            retries=figures["retries"],
            driver_ms=run.driver()["driver_ms"],
        )

    def stacks_of_all(self) -> NDArray[np.int32]:
        """Return by life the number of the stack that allocated it; -1 if unknown."""
        initial = self._premises.initial
        return self._stack_of_lives(np.arange(initial.block_count), initial.addresses)

    @property
    def pool_ids(self) -> list[tuple[int, int]]:
        """Return the pool ids by the numbers that calls use for pools."""
        return [self.pool_id(number) for number in range(len(self._premises.pool_ids))]

    def pool_id(self, number: int) -> tuple[int, int]:
        """Return the id of a pool that calls know by a number."""
        first, second = self._premises.pool_ids[number]
        return int(first), int(second)

    def _stack_of_lives(self, lives: NDArray[np.int64], addresses: NDArray[np.uint64]) -> NDArray[np.int32]:
        """Return the number of the stack that allocated each of these blocks at these addresses; -1 if unknown.

        For a block that existed before the history, the snapshot knows the stack if the block still exists at the end.
        """
        history, blocks = self._history, self.snapshot.blocks
        of_life = np.full(self._premises.initial.block_count, -1, dtype=np.int32)
        seen = np.flatnonzero(history.allocated_at >= 0)
        of_life[seen] = self.trace.stack[history.kept[history.allocated_at[seen]]]
        found = of_life[lives]
        mine = np.flatnonzero(self.snapshot.segments.device[blocks.segment] == self.device)
        order = mine[np.argsort(blocks.address[mine], kind="stable")]
        was_freed = np.ones(self._premises.initial.block_count, dtype=bool)
        was_freed[: history.lives] = (history.freed_at >= 0) | (history.allocated_at >= 0)
        was_freed[history.lives :] = False
        older = np.flatnonzero((found < 0) & ~was_freed[lives])
        place = np.minimum(np.searchsorted(blocks.address[order], addresses[older]), max(len(order) - 1, 0))
        if len(order):
            same = blocks.address[order[place]] == addresses[older]
            found[older[same]] = blocks.stack[order[place[same]]]
        return found

    def packed_bytes(self) -> int:
        """Memory that the requests need if all of them share one growing segment, ignoring their streams and pools.

        Freed memory serves the next request at once, even if it waited for other streams in the recording.
        """
        calls, _ = self._premises.all_calls
        calls["kind"][calls["kind"] == Kind.FREE_SHARED] = Kind.FREE
        calls = calls[np.isin(calls["kind"], (Kind.MALLOC, Kind.FREE)) & (calls["block"] >= 0)]
        calls["stream"] = calls["pool"] = 0
        settings = replace(self.settings, expandable_segments=True, max_split_size=Settings().max_split_size)
        run = Replay(settings, self._premises.roomy, self._premises.initial.block_count, self._premises.pool_ids)
        run.run(calls)
        return int(run.figures()["peak_reserved_bytes"])

    def replay_uncompared(self) -> float:
        """Seconds of one core for a replay as recorded, without comparing or sampling; loading is not counted."""
        run = self._prepared(self.settings, None)
        run.begin_window()
        run.run(self.calls)
        return run.cpu_seconds

    def resolved(self, settings: Settings | str | None) -> Settings:
        """Parse settings for this recording; None means the recorded ones. Raises SettingsError."""
        if settings is None:
            return self.settings
        return config.settings_of(settings, compat=self.compat)

    def _is_recorded(self, settings: Settings | str | None, capacity: int | None) -> bool:
        """Whether these are the recorded settings, so that a replay follows the recording and is compared with it."""
        return capacity is None and self._can_be_compared and self.resolved(settings) == self.settings

    @property
    def _can_be_compared(self) -> bool:
        """Whether a replay can follow the history; one of dense placement has too little information."""
        return self.settings.placement == "torch"

    def _started(
        self, settings: Settings | str | None, capacity: int | None = None, *, journal: bool = False
    ) -> Replay:
        """Return a replay at the first entry, arranged as recorded if it has the recorded settings."""
        if self._is_recorded(settings, capacity):
            return self._premises.follower(journal=journal)
        return self._prepared(self.resolved(settings), capacity, journal=journal)

    def _prepared(self, settings: Settings, capacity: int | None, *, journal: bool = False) -> Replay:
        """Return a replay at the first entry, with earlier blocks wherever the allocator placed them."""
        initial, history = self._premises.initial, self._history
        limit = _limit(settings, capacity)
        run = Replay(settings, capacity or self._premises.roomy, initial.block_count, self._premises.pool_ids, limit)
        if journal:
            run.keep_journal()
        run.run(initial.requests, background=True)
        run.run(initial.frees, background=True)
        if settings == self.settings:
            obtained = history.action == Action.SEGMENT_ALLOC
            run.suggest(np.stack([history.address[obtained], history.size[obtained]], axis=1))
        return run

    def _sampled(self, run: Replay) -> NDArray[np.uint64]:
        """Make all calls, and return live and reserved memory over time."""
        calls = self.calls
        stride = self._stride
        samples = np.zeros((-(-len(calls) // stride), 2), dtype=np.uint64)
        run.sample(samples, stride)
        run.run(calls)
        return samples

    @property
    def _stride(self) -> int:
        return len(self.calls) // MOST_SAMPLES + 1

    def sample_of(self, call: int) -> int:
        """Return the index of the sample (`live` and `reserved` of a result) that contains a call."""
        return call // self._stride

    def _as_recorded(self) -> Result:
        run = self._premises.follower()
        samples = self._sampled(run)
        difference = self._described(run.difference) or self._difference_at_end(run)
        matches, reason = self._verdict(difference)
        return self._result(run, self.settings, samples, matches, reason, difference)

    def _verdict(self, difference: Difference | None) -> tuple[bool | None, str | None]:
        history, initial = self._history, self._premises.initial
        if len(history.broken) > 0:
            entry = int(history.kept[history.broken[0]])
            return None, f"entries are missing from the history: entry {entry} cannot follow what came before it"
        if difference is not None and not initial.is_empty and initial.uncertain > 0:
            return None, (
                "the history begins in mid-run, and the state before it is not certain:"
                f" the sizes of {initial.uncertain} blocks can be up to 1 MiB larger than was assumed"
            )
        if difference is not None and not initial.is_empty and rules_of(self.compat).free_order != "address":
            return None, (
                "the history begins in mid-run, and the state before it is not certain:"
                " it does not say which segments and blocks were older, which decides between free blocks of one size"
            )
        if difference is None and not initial.is_empty:
            return True, (
                f"the history begins in mid-run: {len(initial.layouts)} segments and {len(initial.requests)} blocks"
                " were there before; peaks and device calls are those since then"
            )
        return difference is None, None

    def _described(self, difference: tuple[int, tuple[int, int, int, int] | None] | None) -> Difference | None:
        if difference is None:
            return None
        entry, got = difference
        history = self._history
        if entry >= len(history):
            return Difference(None, None, None if got is None else entry_shown(*got))
        columns = (history.action, history.address, history.size, history.stream)
        recorded = entry_shown(*(int(column[entry]) for column in columns))
        return Difference(int(history.kept[entry]), recorded, None if got is None else entry_shown(*got))

    def _difference_at_end(self, run: Replay) -> Difference | None:
        """Return the first block that only the snapshot or only the replay has.

        A history file does not hold the state at its end.
        """
        if HISTORY_FIELD in self.snapshot.extra:
            return None
        blocks, segments = self.snapshot.blocks, self.snapshot.segments
        mine = segments.device[blocks.segment] == self.device
        recorded = sorted(
            zip(blocks.address[mine].tolist(), blocks.size[mine].tolist(), blocks.state[mine].tolist(), strict=True)
        )
        for expected, got in zip(recorded, run.blocks(), strict=False):
            if expected != got:
                return Difference(None, block_shown(*expected), block_shown(*got))
        if len(recorded) != len(run.blocks()):
            return Difference(None, {"blocks": len(recorded)}, {"blocks": len(run.blocks())})
        return None

    def _result(
        self,
        run: Replay,
        settings: Settings,
        samples: NDArray[np.uint64],
        matches: bool | None,
        reason: str | None,
        difference: Difference | None,
    ) -> Result:
        return Result(
            device=self.device,
            events=self.entries,
            matches_recording=matches,
            reason=reason,
            first_difference=difference,
            seconds=run.seconds,
            live=samples[:, 0].tolist(),
            reserved=samples[:, 1].tolist(),
            blocks=run.blocks(),
            recorded_peak_active_bytes=self._peak_active(settings),
            placement=settings.placement,
            compat=settings.compat,
            compat_source=self.compat_source if settings.compat == self.compat else "given",
            **run.figures(),
            **run.driver(),
        )

    def _peak_active(self, settings: Settings) -> int:
        """The most active at once, as recorded, in the sizes that requests have under `settings`."""
        calls, before = self._premises.all_calls
        return peak_active(calls, lambda sizes: rounded_sizes(settings, sizes), background=before)


def _choose_trace(snapshot: Snapshot, device: int | None) -> Trace:
    """Return the longest history, or that of a device. Entries that are not about memory do not count."""
    devices = devices_with_history(snapshot)
    traces = [trace for trace in snapshot.traces if trace.device in devices]
    if not traces:
        raise FormatError(
            "the snapshot has no history, only the state at its end; record one before the steps in question,"
            " with torch.cuda.memory._record_memory_history() or Allocator.record_history()"
        )
    if device is None:
        return max(traces, key=len)
    found = [trace for trace in traces if trace.device == device]
    if not found:
        others = ", ".join(str(other) for other in devices)
        raise RequestError(f"the snapshot has no history of device {device}; it has one of {others}")
    return found[0]


def _recorded_settings(snapshot: Snapshot, actions: NDArray[np.uint8], compat: str) -> Settings:
    """Return the recorded settings. A snapshot without them had expandable segments if pages were mapped."""
    dense = _dense_settings(snapshot, compat)
    if dense is not None:
        return dense
    mapped = bool(np.any(actions == Action.SEGMENT_MAP))
    try:
        return config.settings_stated({"expandable_segments": mapped, **snapshot.allocator_settings}, compat=compat)
    except SettingsError as error:
        raise FormatError(f"allocator_settings of the snapshot: {printable(str(error))}") from error


def _dense_settings(snapshot: Snapshot, compat: str) -> Settings | None:
    """Return the settings of dense placement; None for a snapshot of another placement.

    A snapshot that PyTorch wrote names the placement in its settings string. One of Allotment's own also has views, and
    default settings if its string is empty.
    """
    try:
        settings = Settings.parse(str(snapshot.allocator_settings.get(STRING) or ""), compat=compat)
    except SettingsError:
        settings = Settings(compat=compat)
    if settings.placement != DENSE and VIEWS in snapshot.extra:
        settings = replace(settings, placement=DENSE)
    return settings if settings.placement == DENSE else None


def _limit(settings: Settings, capacity: int | None) -> int | None:
    """Return the limit that the settings put on a device of known size."""
    if capacity is None or settings.per_process_memory_fraction >= 1.0:
        return None
    most = settings.per_process_memory_fraction * capacity
    return math.floor(most + 0.5) if rules_of(settings.compat).limit_is_rounded else int(most)


def sample_entries_per_second() -> float:
    """Trace entries of the packaged sample replayed a second; comparison off, loading not counted."""
    recording = read_recording(SAMPLE)
    replays = 0
    seconds = 0.0
    while seconds < 0.2:
        seconds += recording.replay_uncompared()
        replays += 1
    return replays * recording.entries / seconds
