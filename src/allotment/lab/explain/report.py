"""Everything known about a recorded run, as one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from math import inf

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState, SegmentType
from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.explain.advice import Advice, advice_of
from allotment.lab.explain.causes import Scene
from allotment.lab.explain.failure import Failure, first_failure
from allotment.lab.explain.growth import Growth, growth_of
from allotment.lab.explain.holders import (
    Category,
    Holder,
    StackHolder,
    categories,
    holders,
    lines_of,
    stack_holders,
)
from allotment.lab.explain.kinds import KindBytes, kinds_at_end
from allotment.lab.explain.moments import moment_of, moment_of_peak
from allotment.lab.explain.steps import Steps
from allotment.lab.explain.study import Study
from allotment.lab.explain.waste import Waste, waste_at
from allotment.lab.notebook import NotebookResult, NotebookTable
from allotment.lab.pinned import PinnedFigures, pinned_figures
from allotment.lab.replay.gate import device_at_end
from allotment.lab.replay.moment import Moment
from allotment.lab.replay.records import MOMENT_BLOCK, Kind
from allotment.lab.replay.run import Recording, devices_with_history
from allotment.lab.tune.candidates import FEW
from allotment.lab.tune.search import (
    WORTH_SAYING,
    Candidate,
    Goal,
    as_recorded,
    candidate_table,
    try_settings,
    worth_following,
)

__all__ = ["AtPeak", "Bounds", "Explanation", "Peak", "at_end", "at_peak", "explain", "explain_end", "explain_study"]

PROCESS = "allotment_process"
GOAL = Goal("balanced")
"""The goal of suggestions, which is also the default of `tune`."""


@dataclass(frozen=True, slots=True)
class Peak:
    """A moment near the peak of reserved memory (see `peak_moment`), or the one at which most was in use."""

    entry: int
    """Index in the file's history; -1 for a moment before the first entry."""
    time_us: int
    live_bytes: int
    """Requested bytes in use."""
    reserved_bytes: int
    holders: list[Holder]
    """By line of code."""
    stacks: list[StackHolder]
    """By whole stack."""
    categories: list[Category]
    """By the program's own names, for each source that says anything; see `labels`."""
    kinds: list[KindBytes]
    """By kind of memory, see `kinds`."""


@dataclass(frozen=True, slots=True)
class AtPeak:
    """The moments at which most memory was reserved and most was in use."""

    device: int
    devices: list[int]
    """The devices about which the snapshot contains as much."""
    peak_reserved_bytes: int
    """The most that was reserved; at the moment of `peak` it may be a little less."""
    peak: Peak
    """The peak of reserved memory."""
    live_peak: Peak
    """The peak of memory in use, which can be long before or after."""
    waste: Waste
    """The waste at the first of these moments."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What any allocator would need, even one that never waits for a stream before it reuses memory."""

    peak_live_bytes: int
    """The most that was in use at once: requested and not yet freed."""
    packing_bytes: int
    """The requests in one growing segment, whatever their streams and pools."""


@dataclass(frozen=True, slots=True)
class Explanation(NotebookResult):
    """Why a run needed its memory."""

    device: int
    devices: list[int]
    """The devices about which the snapshot contains as much."""
    compat: str | None
    """The PyTorch whose rules the replay used; None without a history."""
    matches_recording: bool | None
    failure: Failure | None
    peak_reserved_bytes: int
    """The most that was reserved; at the moment of `peak` it may be a little less."""
    peak: Peak
    """The peak of reserved memory."""
    live_peak: Peak | None
    """The peak of memory in use, which can be long before or after; None without a history."""
    waste: Waste
    bounds: Bounds | None
    """None without a history."""
    steps: Steps | None
    """None if the history does not repeat itself."""
    growth: Growth | None
    """What grows with every step; None if nothing does, or there are no steps."""
    advice: list[Advice]
    """What to change, most important first."""
    recorded: Candidate | None
    """The run as recorded, to compare suggestions with; None without a history."""
    suggestions: list[Candidate]
    """Settings that would help most, tried by replay; see `worth_following`. None if memory grows: see `advice`."""
    pinned: PinnedFigures | None
    """Pinned memory; None if PyTorch recorded none of it."""
    process: dict[str, int] | None
    """What the whole process held on the device at the end, in bytes by name; None if the snapshot does not say."""

    @property
    def driver_ms(self) -> float | None:
        """Duration of the driver calls, by the table of costs; None without a history."""
        return None if self.recorded is None else self.recorded.driver_ms

    def tables(self) -> list[NotebookTable]:
        """Return what holds the peak, what is wasted and why, what was free when a request failed, what would help."""
        causes = [(field.name, getattr(self.waste, field.name)) for field in fields(self.waste)]
        tables = [
            NotebookTable(
                f"In use at the peak, {self.peak.live_bytes:,} of {self.peak.reserved_bytes:,} bytes reserved",
                ("where", "bytes", "blocks", "pinned_bytes"),
                [(each.where, each.bytes, each.blocks, each.pinned_bytes) for each in self.peak.holders],
            ),
            NotebookTable("Reserved and not in use", ("cause", "bytes"), [*causes, ("total", self.waste.total)]),
        ]
        if self.advice:
            advice = [(each.kind, each.text, each.gain_bytes) for each in self.advice]
            tables.append(NotebookTable("What to change", ("kind", "text", "gain_bytes"), advice))
        kinds = [(each.kind, each.bytes, each.sure) for each in self.peak.kinds]
        tables.append(NotebookTable("In use at the peak, by kind", ("kind", "bytes", "sure"), kinds))
        if self.peak.categories:
            rows = [(each.source, each.name or "not said", each.bytes, each.blocks) for each in self.peak.categories]
            tables.append(
                NotebookTable("The same, by the program's own names", ("source", "name", "bytes", "blocks"), rows)
            )
        if self.failure is not None:
            free = [(each.bytes, each.reason) for each in self.failure.free]
            tables.append(
                NotebookTable(f"Free when {self.failure.size:,} bytes were refused", ("bytes", "reason"), free)
            )
        if self.suggestions:
            tables.append(candidate_table("What would help", self.suggestions))
        return tables


def explain(recording: Recording, progress: Callable[[str], None] = lambda what: None) -> Explanation:
    """Examine the moment of the peak and the first failure, find what to change, and try what would help."""
    return explain_study(Study(recording), progress)


def explain_study(study: Study, progress: Callable[[str], None] = lambda what: None) -> Explanation:
    """Variant for a recording with results that exist already or are needed later."""
    recording = study.recording
    progress("replaying")
    result = recording.replay()
    look = _look(study)
    found = look.found
    progress("looking for the request that failed")
    failure = first_failure(recording)
    progress("looking for steps and for what grows")
    growth = growth_of(study, failure)
    progress("trying other settings")
    recorded, suggestions = _suggestions(recording, as_recorded(result), failure, growth)
    progress("looking for what to change in the program")
    scene = Scene(
        study,
        moment=int(np.argmax(study.in_use)) if failure is None else failure.call,
        peak=look.moment,
        peak_moment=look.call + 1,
        peak_reserved_bytes=found.peak_reserved_bytes,
        waste=found.waste,
        failure=failure,
    )
    roomy = try_settings(recording, FEW, None) if failure is not None and not suggestions and growth is None else []
    return Explanation(
        device=found.device,
        devices=found.devices,
        compat=recording.compat,
        matches_recording=result.matches_recording,
        failure=failure,
        peak_reserved_bytes=found.peak_reserved_bytes,
        peak=found.peak,
        live_peak=found.live_peak,
        waste=found.waste,
        bounds=Bounds(found.live_peak.live_bytes, recording.packed_bytes()),
        steps=study.steps,
        growth=growth,
        advice=advice_of(scene, growth, failure, recorded, suggestions, roomy),
        recorded=recorded,
        suggestions=suggestions,
        pinned=pinned_figures(recording.snapshot),
        process=_process_of(recording.snapshot, found.device),
    )


def _process_of(snapshot: Snapshot, device: int) -> dict[str, int] | None:
    """Read the field that an allocator writes in a process whose memory is counted. Other content is ignored."""
    field = snapshot.extra.get(PROCESS)
    parts = field.get("bytes") if isinstance(field, dict) and field.get("device") == device else None
    if not isinstance(parts, dict):
        return None
    return {str(name): size for name, size in parts.items() if isinstance(size, int) and 0 <= size < 1 << 63}


def at_peak(recording: Recording, settings: str | None = None) -> AtPeak:
    """Return the peak of a run as recorded, or as it would have been under other settings. Raises SettingsError."""
    return _look(Study(recording), settings).found


@dataclass(frozen=True, slots=True)
class _Look:
    """The peak, with the call that led to it."""

    found: AtPeak
    call: int
    """The call that led to the peak; -1 for none."""
    moment: Moment


def _look(study: Study, settings: str | None = None) -> _Look:
    recording, in_use = study.recording, study.in_use
    place, moment, most_reserved = moment_of_peak(recording, settings, in_use)
    call = place - 1
    stream, pool = _asker(recording, call, moment)
    streams_share = recording.resolved(settings).placement == "dense"
    waste = waste_at(moment, None if streams_share else stream, pool)
    devices = devices_with_history(recording.snapshot)
    most = int(np.argmax(in_use))
    live_peak = _peak_at(study, most - 1, moment_of(recording, most, settings))
    peak = _peak_at(study, call, moment)
    return _Look(AtPeak(recording.device, devices, most_reserved, peak, live_peak, waste), call, moment)


def _peak_at(study: Study, call: int, moment: Moment) -> Peak:
    """Return which code holds what at a moment that a call led to."""
    recording = study.recording
    entry = recording.entry_of(call)
    lives, places = moment.live
    sizes = moment.blocks["requested"][places]
    stacks = study.blocks.stack[lives].tolist()
    return Peak(
        entry=entry,
        time_us=int(recording.trace.time_us[max(entry, 0)]),
        live_bytes=moment.requested,
        reserved_bytes=moment.reserved,
        holders=holders(study.lines_of(lives), sizes, moment.pinned[places]),
        stacks=stack_holders(recording.stacks, stacks, sizes),
        categories=[
            category
            for labels in study.labels
            for category in categories(labels.source, labels.names, labels.of_life[lives].tolist(), sizes)
        ],
        kinds=study.kinds.sums(lives, sizes),
    )


def explain_end(snapshot: Snapshot, device: int | None = None) -> Explanation:
    """Explain a snapshot without a history: the moment at which it was taken.

    The default of `device` is the one with most reserved. Raises FormatError if the snapshot has no memory of the
    device.
    """
    found = at_end(snapshot, device)
    return Explanation(
        device=found.device,
        devices=found.devices,
        compat=None,
        matches_recording=None,
        failure=None,
        peak_reserved_bytes=found.peak_reserved_bytes,
        peak=found.peak,
        live_peak=None,
        waste=found.waste,
        bounds=None,
        steps=None,
        growth=None,
        advice=[],
        recorded=None,
        suggestions=[],
        pinned=pinned_figures(snapshot),
        process=_process_of(snapshot, found.device),
    )


def at_end(snapshot: Snapshot, device: int | None = None) -> AtPeak:
    """Return the moment at which a snapshot was taken, by default of the device with most reserved.

    Raises FormatError.
    """
    segments, blocks = snapshot.segments, snapshot.blocks
    device = device_at_end(snapshot, device)
    mine = np.flatnonzero((segments.device[blocks.segment] == device) & (blocks.state != BlockState.UNMAPPED))
    mine = mine[np.argsort(blocks.address[mine], kind="stable")]
    moment = Moment(_as_moment_blocks(snapshot, mine), np.zeros(0, dtype=np.uint64))
    used = moment.blocks["state"] == BlockState.ACTIVE_ALLOCATED
    sizes, stacks = moment.blocks["requested"][used], blocks.stack[mine[used]].tolist()
    tenants = blocks.extra.get("tenant", {})
    names = [str(tenants.get(block, "")) for block in mine[used].tolist()]
    in_pool = (moment.blocks["pool_first"][used] > 0) | (moment.blocks["pool_second"][used] > 0)
    peak = Peak(
        entry=-1,
        time_us=0,
        live_bytes=moment.requested,
        reserved_bytes=moment.reserved,
        holders=holders(lines_of(snapshot.stacks, stacks), sizes, moment.pinned[used]),
        stacks=stack_holders(snapshot.stacks, stacks, sizes),
        categories=categories("tenant", names, range(len(names)), sizes) if any(names) else [],
        kinds=kinds_at_end(snapshot.stacks, blocks.stack[mine[used]], in_pool, sizes),
    )
    waste = waste_at(moment, *_asker_of_most(moment))
    return AtPeak(device, np.unique(segments.device).tolist(), peak.reserved_bytes, peak, peak, waste)


def _as_moment_blocks(snapshot: Snapshot, mine: NDArray[np.int64]) -> NDArray[np.void]:
    segments, blocks = snapshot.segments, snapshot.blocks
    segment = blocks.segment[mine]
    found = np.zeros(len(mine), dtype=MOMENT_BLOCK)
    found["address"], found["size"], found["state"] = blocks.address[mine], blocks.size[mine], blocks.state[mine]
    in_use = found["state"] == BlockState.ACTIVE_ALLOCATED
    requested = blocks.requested_size[mine] if "requested_size" in blocks.present else blocks.size[mine]
    found["requested"] = np.where(in_use, requested, 0)
    found["stream"], found["segment"] = segments.stream[segment], segments.address[segment]
    found["pool_first"], found["pool_second"] = segments.pool_first[segment], segments.pool_second[segment]
    found["small"] = segments.type[segment] == SegmentType.SMALL
    whole = (found["state"] == BlockState.INACTIVE) & (found["size"] == segments.total_size[segment])
    found["releasable"] = np.where(whole, found["size"], 0)
    return found


def _asker(recording: Recording, call: int, moment: Moment) -> tuple[int, tuple[int, int]]:
    """Return stream and pool of the request that led to a moment; else those with most reserved memory."""
    if call >= 0 and recording.calls["kind"][call] == Kind.MALLOC:
        asked = recording.calls[call]
        return int(asked["stream"]), recording.pool_id(int(asked["pool"]))
    return _asker_of_most(moment)


def _asker_of_most(moment: Moment) -> tuple[int, tuple[int, int]]:
    """Return the stream with most reserved memory, and the default pool."""
    streams = np.unique(moment.blocks["stream"])
    if len(streams) == 0:
        return 0, (0, 0)
    held = [int(moment.blocks["size"][moment.blocks["stream"] == stream].sum()) for stream in streams]
    return int(streams[int(np.argmax(held))]), (0, 0)


def _suggestions(
    recording: Recording, recorded: Candidate, failure: Failure | None, growth: Growth | None
) -> tuple[Candidate, list[Candidate]]:
    """Return the recorded run and the settings worth following: those that save memory or, after a failure, fit.

    No settings are worth following if memory grows with every step.
    """
    if growth is not None:
        return recorded, []
    capacity = failure.capacity if failure is not None else None
    tried = try_settings(recording, FEW, capacity)
    recorded, worth = worth_following(recording, GOAL, recorded, tried, capacity)
    most = inf if failure is not None else (1 - WORTH_SAYING) * recorded.peak_reserved_bytes
    return recorded, [each for each in worth if each.peak_reserved_bytes <= most]
