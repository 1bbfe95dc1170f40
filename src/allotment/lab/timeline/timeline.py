"""A recorded run, or one under other settings, prepared for viewing: over time, and at any moment."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from threading import Lock

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState
from allotment._formats.torch_snapshot import Snapshot, Stack
from allotment._settings import Settings
from allotment.lab.explain.kinds import kind_labels
from allotment.lab.explain.labels import Labels, labels_of
from allotment.lab.explain.study import Study
from allotment.lab.replay.gate import device_at_end
from allotment.lab.replay.moment import Deeds, peak_moment
from allotment.lab.replay.records import Kind
from allotment.lab.replay.run import Recording
from allotment.lab.timeline.columns import Columns, gathered
from allotment.lab.timeline.groups import GROUPINGS, Grouping, group_lives
from allotment.lab.timeline.lives import Lives, Units, lives_of, units_of
from allotment.lab.timeline.pieces import AddressAxis, Pieces, pieces_at
from allotment.lab.timeline.search import find_lives
from allotment.lab.timeline.walk import Event, UnitReach, Walk

__all__ = ["SEARCH", "Mark", "Timeline", "timeline_of", "timeline_of_end"]

MOST_COLUMNS = 1 << 16
"""Columns kept for the whole run; a shorter interval is walked again."""
CHECKPOINTS = 256
"""Checkpoints: moments whose lives are kept, to start from."""
MOST_MARKS = 500
MOST_SEARCHES = 8
MOST_CLASSIFIED = 2_000_000
"""Most calls of a history that also gets the lines and kinds of `explain`; a longer one would take a second more."""
SEARCH = "search:"
"""Prefix of a query: groups into matches and the rest."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A moment of interest."""

    moment: int
    kind: str
    """"oom" for a failed request, "empty" for an `empty_cache`."""
    size: int


class Timeline:
    """Lives and memory through time. Threads may share one."""

    def __init__(
        self,
        lives: Lives,
        units: Units,
        *,
        last: int,
        stacks: tuple[Stack, ...],
        stack_of: NDArray[np.int32],
        pools: list[tuple[int, int]],
        entries: NDArray[np.int64],
        times: NDArray[np.int64],
        marks: list[Mark],
        labels: Sequence[Labels] = (),
        streams_share: bool = False,
    ) -> None:
        """`last` is the last moment; `entries` and `times` are by moment: the entry in the file, and microseconds.

        The entry is -1 for the moment before the history, as in `lab.explain`. `streams_share`: all streams share free
        memory.
        """
        self.lives, self.units, self.last = lives, units, last
        self.stacks, self.stack_of, self.pools = stacks, stack_of, pools
        self.entries, self.times, self.marks = entries, times, marks
        self._labels = labels
        self._streams_share = streams_share
        self.axis = AddressAxis(units)
        self._lock = Lock()
        self._life_at = np.full(last + 1, -1, dtype=np.int32)
        self._what_at = np.zeros(last + 1, dtype=np.uint8)
        waits = lives.freed < lives.end
        self._set(Event.BEGINS, lives.begin, np.ones(len(lives), dtype=bool))
        self._set(Event.ENDS, lives.freed, ~waits)
        self._set(Event.WAITS, lives.freed, waits)
        self._checkpoints: list[NDArray[np.int32]] = []
        self._stride = last // CHECKPOINTS + 1
        self._groupings: dict[str, Grouping] = {}
        self._columns: dict[str, Columns] = {}
        self._found: dict[str, NDArray[np.bool_]] = {}

    def _set(self, event: Event, moments: NDArray[np.int32], which: NDArray[np.bool_]) -> None:
        happens = np.flatnonzero(which & (moments >= 1) & (moments <= self.last))
        self._life_at[moments[happens]] = happens
        self._what_at[moments[happens]] = event

    # --- the peaks, and the request for which waste is computed
    # ---------------------------------------------------------

    @cached_property
    def _reserved(self) -> NDArray[np.int64]:
        return _totals(self.units.begin, self.units.end, self.units.size, self.last)

    @cached_property
    def _in_use(self) -> NDArray[np.int64]:
        return _totals(self.lives.begin, self.lives.freed, self.lives.requested, self.last)

    @cached_property
    def peak_reserved(self) -> tuple[int, int]:
        """Return the moment to show for the peak of reserved memory (see `peak_moment`), and that peak."""
        return peak_moment(self._reserved, self._in_use), int(self._reserved.max())

    def reserved_at(self, moment: int) -> int:
        """Return the bytes reserved from the device."""
        return int(self._reserved[moment])

    @cached_property
    def peak_live(self) -> tuple[int, int]:
        """Return the first moment at which most was in use, and the bytes."""
        return int(np.argmax(self._in_use)), int(self._in_use.max())

    @cached_property
    def asker(self) -> tuple[int, tuple[int, int]]:
        """Return stream and pool of the request that made the peak; else those of the stream with most memory."""
        moment = self.peak_reserved[0]
        if self._what_at[moment] == Event.BEGINS:
            life = self._life_at[moment]
            return int(self.lives.stream[life]), self.pools[int(self.lives.pool[life])]
        there = self.units_at(moment)
        if len(there) == 0:
            return 0, (0, 0)
        streams, which = np.unique(self.units.stream[there], return_inverse=True)
        held = np.bincount(which, self.units.size[there])
        return int(streams[int(np.argmax(held))]), (0, 0)

    # --- one moment --------------------------------------------------------------------------------------------------

    def alive(self, moment: int) -> NDArray[np.int32]:
        """Return the lives at a moment."""
        self.columns()
        place = moment // self._stride
        start = place * self._stride
        since = self._life_at[start + 1 : moment + 1][self._what_at[start + 1 : moment + 1] == Event.BEGINS]
        there = np.concatenate([self._checkpoints[place], since])
        return np.asarray(there[self.lives.end[there] > moment])

    def units_at(self, moment: int) -> NDArray[np.int32]:
        """Return the memory at a moment, by address."""
        return np.flatnonzero((self.units.begin <= moment) & (self.units.end > moment)).astype(np.int32)

    def pieces(self, moment: int) -> Pieces:
        """Return the state of all memory."""
        return pieces_at(self.lives, self.units, self.axis, self.alive(moment), self.units_at(moment), moment)

    # --- through time ------------------------------------------------------------------------------------------------

    @cached_property
    def groupings(self) -> list[str]:
        """Return useful criteria for grouping blocks, the best first."""
        ways = dict.fromkeys([*GROUPINGS, *(each.source for each in self._labels)])
        useful = [by for by in ways if len(self.grouping(by).names) > 1]
        return useful or ["size"]

    def grouping(self, by: str) -> Grouping:
        """Return the band of every life: by one of `groupings`, or by the matches of a search after `SEARCH`."""
        if by.startswith(SEARCH):
            found = self.search(by.removeprefix(SEARCH))
            return Grouping((~found).astype(np.uint8), ["found", "others"], has_rest=True)
        if by not in self._groupings:
            moment = self.peak_live[0]
            at_peak = np.flatnonzero((self.lives.begin <= moment) & (self.lives.freed > moment)).astype(np.int32)
            self._groupings[by] = group_lives(
                by, self.lives, self.stack_of, self.stacks, self.pools, self._labels, at_peak
            )
        return self._groupings[by]

    def search(self, query: str) -> NDArray[np.bool_]:
        """Return by life whether it matches; see `search`. The last few answers are kept. Raises RequestError."""
        if query not in self._found:
            while len(self._found) >= MOST_SEARCHES:
                forgotten = next(iter(self._found))
                self._found.pop(forgotten)
                self._columns.pop(SEARCH + forgotten, None)
            self._found[query] = find_lives(query, self.lives, self.stack_of, self.stacks)
        return self._found[query]

    def columns(self, by: str | None = None) -> Columns:
        """Return the whole run, in at most `MOST_COLUMNS` columns."""
        by = by or self.groupings[0]
        with self._lock:
            if by not in self._columns:
                self._columns[by] = self._walk_all(self.grouping(by))
            return self._columns[by]

    def snapped(self, edges: NDArray[np.int32]) -> NDArray[np.int32]:
        """Return moments near these that need no walk, if they are far apart: edges of the columns of the whole run."""
        whole = self._whole_edges
        if edges[-1] - edges[0] < 2 * (len(edges) - 1) * (self.last + 1) / (len(whole) - 1):
            return edges
        near = np.searchsorted(whole, edges, "right") - 1
        near[-1] = min(int(np.searchsorted(whole, edges[-1])), len(whole) - 1)
        return np.unique(whole[near])

    def stretch(self, edges: NDArray[np.int32], by: str) -> Columns:
        """Return columns from each of these moments up to the next.

        pre: they rise, from 0 at least to one past the last
        """
        whole = self.columns(by)
        places = np.searchsorted(self._whole_edges, edges)
        if np.array_equal(self._whole_edges[places], edges):
            return gathered(whole, places)
        grouping = self.grouping(by)
        start = int(edges[0])
        there, units = self.alive(start), self.units_at(start)
        with self._lock:
            self._walk.start(start, there, units, grouping.band, len(grouping.names))
            return self._walk.run(np.ascontiguousarray(edges))

    def waste(self, moment: int) -> list[int]:
        """Return the bytes reserved and not in use, by cause in the order of `Waste`."""
        edges = np.array([moment, moment + 1], dtype=np.int32)
        there, units = self.alive(moment), self.units_at(moment)
        with self._lock:
            self._walk.start(moment, there, units, np.zeros(len(self.lives), dtype=np.uint8), 1)
            return [int(size) for size in self._walk.run(edges).waste[0]]

    @cached_property
    def _whole_edges(self) -> NDArray[np.int32]:
        return np.unique(np.linspace(0, self.last + 1, min(self.last + 1, MOST_COLUMNS) + 1).astype(np.int32))

    def _walk_all(self, grouping: Grouping) -> Columns:
        """Walk the whole run, leaving checkpoints if there are none."""
        first = np.flatnonzero((self.lives.begin <= 0) & (self.lives.end > 0)).astype(np.int32)
        self._walk.start(0, first, self.units_at(0), grouping.band, len(grouping.names))
        edges = self._whole_edges
        if self._checkpoints:
            return self._walk.run(edges)
        stops = np.arange(0, self.last + 1, self._stride, dtype=np.int32)
        found = []
        for stop in [*stops[1:].tolist(), self.last + 1]:
            self._checkpoints.append(self._walk.alive())
            inside = edges[(edges > self._walk.now) & (edges < stop)]
            found.append(self._walk.run(np.concatenate([[self._walk.now], inside, [stop]]).astype(np.int32)))
        joined = [np.concatenate([getattr(part, name) for part in found]) for name in Columns.__slots__]
        starts = np.unique(np.concatenate([edges[:-1], stops]))
        # A checkpoint cuts a column in two: put it together again.
        return gathered(Columns(*joined), np.searchsorted(starts, edges))

    @cached_property
    def _walk(self) -> Walk:
        lives, units = self.lives, self.units
        bounds = np.unique(np.concatenate([units.address, units.address + units.size.astype(np.uint64)]))
        stream, pool = self.asker
        in_pool = (units.pool_first == pool[0]) & (units.pool_second == pool[1])
        reach = np.where(in_pool, UnitReach.FOR_OTHER_STREAM, UnitReach.IN_OTHER_POOL).astype(np.uint8)
        reach[in_pool & ((units.stream == stream) | self._streams_share)] = UnitReach.REACHABLE
        late = np.flatnonzero((lives.freed < lives.end) & (lives.end <= self.last))
        return Walk(
            {
                **{name: getattr(lives, name) for name in ("size", "requested", "freed", "end")},
                **_atoms(bounds, lives.address, lives.size),
                "life_at": self._life_at,
                "what_at": self._what_at,
                "late": late[np.argsort(lives.end[late], kind="stable")].astype(np.int32),
            },
            {
                **{name: getattr(units, name) for name in ("size", "begin", "end")},
                **_atoms(bounds, units.address, units.size),
                "coming": np.argsort(units.begin, kind="stable").astype(np.int32),
                "going": np.argsort(units.end, kind="stable").astype(np.int32),
                "reach": reach,
            },
            len(bounds),
        )


def _totals(begin: NDArray[np.int32], end: NDArray[np.int32], size: NDArray[np.int64], last: int) -> NDArray[np.int64]:
    """Return by moment the sum of the existing sizes."""
    change = np.zeros(last + 2, dtype=np.int64)
    np.add.at(change, np.minimum(begin, last + 1), size)
    np.subtract.at(change, np.minimum(end, last + 1), size)
    return np.cumsum(change)[: last + 1]


def _atoms(
    bounds: NDArray[np.uint64], address: NDArray[np.uint64], size: NDArray[np.int64]
) -> dict[str, NDArray[np.int32]]:
    """Return the first and the last atom of address intervals; atom i spans from bound i to the next."""
    most = max(len(bounds) - 2, 0)
    first = np.searchsorted(bounds, address, "right") - 1
    last = np.searchsorted(bounds, address + size.astype(np.uint64), "left") - 1
    return {
        "first_atom": np.clip(first, 0, most).astype(np.int32),
        "last_atom": np.clip(last, 0, most).astype(np.int32),
    }


def timeline_of(recording: Recording, settings: Settings | str | None = None, deeds: Deeds | None = None) -> Timeline:
    """Replay a recording under `settings`; without them, as recorded. `deeds` are those of that replay, if known."""
    deeds, calls = deeds or recording.deeds(settings), recording.calls
    lives = lives_of(deeds, calls)
    refused = np.flatnonzero(
        (calls["kind"] == Kind.MALLOC) & ((calls["block"] < 0) | (lives.size[calls["block"]] == 0))
    )
    emptied = np.flatnonzero(calls["kind"] == Kind.EMPTY_CACHE)
    marks = [Mark(call + 1, "oom", int(calls["size"][call])) for call in refused[:MOST_MARKS].tolist()]
    marks += [Mark(call + 1, "empty", 0) for call in emptied[:MOST_MARKS].tolist()]
    entries = recording.call_entries
    return Timeline(
        lives,
        units_of(deeds.segments, len(calls) + 1),
        last=len(calls),
        stacks=recording.stacks,
        stack_of=recording.stacks_of_all(),
        pools=recording.pool_ids,
        entries=np.concatenate([[-1], entries]),
        times=np.maximum.accumulate(recording.trace.time_us[np.concatenate([entries[:1], entries])]),
        marks=sorted(marks, key=lambda mark: mark.moment),
        labels=_labels(recording),
        streams_share=recording.resolved(settings).placement == "dense",
    )


def _labels(recording: Recording) -> list[Labels]:
    """Return the program's labels of its memory and, unless that takes long, the lines and kinds that `explain` names.

    Those lines include memory of backward passes, whose stacks have no Python frames.
    """
    if len(recording.calls) > MOST_CLASSIFIED:
        return labels_of(recording)
    study = Study(recording)
    return [*study.labels, Labels("line", study.origins.lines, study.origins.of_life), kind_labels(study.kinds)]


def timeline_of_end(snapshot: Snapshot, device: int | None = None) -> Timeline:
    """Return a snapshot without a history: the one moment at which it was taken.

    `device` is the one with most reserved, unless given. Raises FormatError if the snapshot has no memory of it.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    chosen = device_at_end(snapshot, device)
    mine = np.flatnonzero(segments.device == chosen)
    states = (BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_PENDING_FREE)
    used = np.flatnonzero((segments.device[blocks.segment] == chosen) & np.isin(blocks.state, states))
    pools: dict[tuple[int, int], int] = {(0, 0): 0}
    pairs = zip(segments.pool_first.tolist(), segments.pool_second.tolist(), strict=True)
    pool_of = np.array([pools.setdefault(pair, len(pools)) for pair in pairs], dtype=np.int32)
    requested = blocks.requested_size[used] if "requested_size" in blocks.present else blocks.size[used]
    waits = blocks.state[used] == BlockState.ACTIVE_PENDING_FREE
    lives = Lives(
        address=blocks.address[used],
        size=blocks.size[used].astype(np.int64),
        requested=requested.astype(np.int64),
        begin=np.zeros(len(used), dtype=np.int32),
        freed=np.where(waits, 0, 1).astype(np.int32),
        end=np.ones(len(used), dtype=np.int32),
        stream=segments.stream[blocks.segment[used]],
        pool=pool_of[blocks.segment[used]],
    )
    mine = mine[np.argsort(segments.address[mine], kind="stable")]
    units = Units(
        address=segments.address[mine],
        size=segments.total_size[mine].astype(np.int64),
        begin=np.zeros(len(mine), dtype=np.int32),
        end=np.ones(len(mine), dtype=np.int32),
        stream=segments.stream[mine],
        pool_first=segments.pool_first[mine],
        pool_second=segments.pool_second[mine],
        page=np.zeros(len(mine), dtype=np.int64),
    )
    nothing = np.zeros(1, dtype=np.int64)
    return Timeline(
        lives,
        units,
        last=0,
        stacks=snapshot.stacks,
        stack_of=blocks.stack[used],
        pools=list(pools),
        entries=nothing,
        times=nothing,
        marks=[],
    )
