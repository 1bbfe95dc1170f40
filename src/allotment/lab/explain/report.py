"""Everything that can be said about a recorded run, as one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from itertools import islice

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState, SegmentType
from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.explain.failure import Failure, first_failure
from allotment.lab.explain.holders import (
    Category,
    Holder,
    StackHolder,
    categories,
    holders,
    lines_of,
    stack_holders,
)
from allotment.lab.explain.labels import labels_of
from allotment.lab.explain.moments import moment_of
from allotment.lab.explain.waste import Waste, waste_at
from allotment.lab.replay.gate import device_at_end
from allotment.lab.replay.moment import Moment
from allotment.lab.replay.records import MOMENT_BLOCK, Kind
from allotment.lab.replay.run import Recording, devices_with_history
from allotment.lab.showing import Shown, ShownTable
from allotment.lab.tune.candidates import FEW
from allotment.lab.tune.search import Candidate, candidate_table, try_settings, with_paces

__all__ = ["AtPeak", "Bounds", "Explanation", "Peak", "at_end", "at_peak", "explain", "explain_end"]

MOST_SUGGESTIONS = 3


@dataclass(frozen=True, slots=True)
class Peak:
    """The moment at which most memory was reserved, or most of it was in use."""

    entry: int
    """In the file's history; -1 if it was before the first."""
    time_us: int
    live_bytes: int
    """Asked for and in use."""
    reserved_bytes: int
    holders: list[Holder]
    """By line."""
    stacks: list[StackHolder]
    """The same by whole stack."""
    categories: list[Category]
    """The same by what the program calls it, for each source that says anything; see `labels`."""


@dataclass(frozen=True, slots=True)
class AtPeak:
    """The moments at which most memory was reserved and most was in use."""

    device: int
    devices: list[int]
    """Those that the snapshot tells as much of."""
    peak: Peak
    """Of what was reserved."""
    live_peak: Peak
    """Of what was in use, which can be long before or after."""
    waste: Waste
    """At the first of them."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """What any allocator would need."""

    peak_live_bytes: int
    """The most that was active at once."""
    packing_bytes: int
    """The requests in one growing segment, whatever their streams and pools."""


@dataclass(frozen=True, slots=True)
class Explanation(Shown):
    """Why a run needed the memory that it did."""

    device: int
    devices: list[int]
    """Those that the snapshot tells as much of."""
    compat: str | None
    """The PyTorch by whose rules it was replayed; None without a history."""
    matches_recording: bool | None
    failure: Failure | None
    peak: Peak
    """Of what was reserved."""
    live_peak: Peak | None
    """Of what was in use, which can be long before or after; None without a history."""
    waste: Waste
    bounds: Bounds | None
    """None without a history."""
    driver_ms: float | None
    """What the calls of the driver take, by the table of costs; None without a history."""
    suggestions: list[Candidate]
    """What would help most, tried by replay."""

    def tables(self) -> list[ShownTable]:
        """Who holds what at the peak, what is wasted and why, what was free when a request failed, what would help."""
        causes = [(field.name, getattr(self.waste, field.name)) for field in fields(self.waste)]
        tables = [
            ShownTable(
                f"In use at the peak, {self.peak.live_bytes:,} of {self.peak.reserved_bytes:,} bytes reserved",
                ("where", "bytes", "blocks", "pinned_bytes"),
                [(each.where, each.bytes, each.blocks, each.pinned_bytes) for each in self.peak.holders],
            ),
            ShownTable("Reserved and not in use", ("cause", "bytes"), [*causes, ("total", self.waste.total)]),
        ]
        if self.peak.categories:
            rows = [(each.source, each.name or "not said", each.bytes, each.blocks) for each in self.peak.categories]
            tables.append(ShownTable("The same, as the program calls it", ("source", "name", "bytes", "blocks"), rows))
        if self.failure is not None:
            free = [(each.bytes, each.reason) for each in self.failure.free]
            tables.append(ShownTable(f"Free when {self.failure.size:,} bytes were refused", ("bytes", "reason"), free))
        if self.suggestions:
            tables.append(candidate_table("What would help", self.suggestions))
        return tables


def explain(recording: Recording, progress: Callable[[str], None] = lambda what: None) -> Explanation:
    """Look at the moment of the peak and at the first failure, and try what would help."""
    progress("replaying")
    result = recording.replay()
    found = at_peak(recording)
    progress("looking for the request that failed")
    failure = first_failure(recording)
    return Explanation(
        device=found.device,
        devices=found.devices,
        compat=recording.compat,
        matches_recording=result.matches_recording,
        failure=failure,
        peak=found.peak,
        live_peak=found.live_peak,
        waste=found.waste,
        bounds=Bounds(result.recorded_peak_active_bytes, recording.packed_bytes()),
        driver_ms=result.driver_ms,
        suggestions=_suggestions(recording, result.peak_reserved_bytes, failure, progress),
    )


def at_peak(recording: Recording, settings: str | None = None) -> AtPeak:
    """The peak of a run as recorded, or as it would have been under other settings. Raises SettingsError."""
    call, moment = _peak_moment(recording, settings)
    stream, pool = _asker(recording, call, moment)
    streams_share = recording.resolved(settings).placement == "dense"
    waste = waste_at(moment, None if streams_share else stream, pool)
    devices = devices_with_history(recording.snapshot)
    most = recording.most_in_use()
    live_peak = _peak_at(recording, most, moment_of(recording, most + 1, settings))
    return AtPeak(recording.device, devices, _peak_at(recording, call, moment), live_peak, waste)


def _peak_at(recording: Recording, call: int, moment: Moment) -> Peak:
    """Who holds what at a moment, which a call led to."""
    entry = recording.entry_of(call)
    lives, places = moment.live
    sizes = moment.blocks["requested"][places]
    stacks = recording.stacks_of_all()[lives].tolist()
    return Peak(
        entry=entry,
        time_us=int(recording.trace.time_us[max(entry, 0)]),
        live_bytes=moment.requested,
        reserved_bytes=moment.reserved,
        holders=holders(lines_of(recording.stacks, stacks), sizes, moment.pinned[places]),
        stacks=stack_holders(recording.stacks, stacks, sizes),
        categories=[
            category
            for labels in labels_of(recording)
            for category in categories(labels.source, labels.names, labels.of_life[lives].tolist(), sizes)
        ],
    )


def explain_end(snapshot: Snapshot, device: int | None = None) -> Explanation:
    """What can be said of a snapshot without a history: the moment at which it was taken.

    `device` is the one with most reserved, unless given. Raises FormatError if the snapshot has no memory of it.
    """
    found = at_end(snapshot, device)
    return Explanation(
        device=found.device,
        devices=found.devices,
        compat=None,
        matches_recording=None,
        failure=None,
        peak=found.peak,
        live_peak=None,
        waste=found.waste,
        bounds=None,
        driver_ms=None,
        suggestions=[],
    )


def at_end(snapshot: Snapshot, device: int | None = None) -> AtPeak:
    """The moment at which a snapshot was taken, of the device with most reserved unless given. Raises FormatError."""
    segments, blocks = snapshot.segments, snapshot.blocks
    device = device_at_end(snapshot, device)
    mine = np.flatnonzero((segments.device[blocks.segment] == device) & (blocks.state != BlockState.UNMAPPED))
    mine = mine[np.argsort(blocks.address[mine], kind="stable")]
    moment = Moment(_as_moment_blocks(snapshot, mine), np.zeros(0, dtype=np.uint64))
    used = moment.blocks["state"] == BlockState.ACTIVE_ALLOCATED
    sizes, stacks = moment.blocks["requested"][used], blocks.stack[mine[used]].tolist()
    tenants = blocks.extra.get("tenant", {})
    names = [str(tenants.get(block, "")) for block in mine[used].tolist()]
    peak = Peak(
        entry=-1,
        time_us=0,
        live_bytes=moment.requested,
        reserved_bytes=moment.reserved,
        holders=holders(lines_of(snapshot.stacks, stacks), sizes, moment.pinned[used]),
        stacks=stack_holders(snapshot.stacks, stacks, sizes),
        categories=categories("tenant", names, range(len(names)), sizes) if any(names) else [],
    )
    waste = waste_at(moment, *_asker_of_most(moment))
    return AtPeak(device, np.unique(segments.device).tolist(), peak, peak, waste)


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


def _peak_moment(recording: Recording, settings: str | None) -> tuple[int, Moment]:
    """The first call after which most was reserved, and the moment after it; -1 if that was before all of them."""
    reserved = recording.curve(settings)[:, 1]
    before = moment_of(recording, 0, settings)
    if len(reserved) == 0 or int(reserved.max()) <= before.reserved:
        return -1, before
    call = int(np.argmax(reserved))
    return call, moment_of(recording, call + 1, settings)


def _asker(recording: Recording, call: int, moment: Moment) -> tuple[int, tuple[int, int]]:
    """Stream and pool of the request that led to a moment; else those that most is reserved for."""
    if call >= 0 and recording.calls["kind"][call] == Kind.MALLOC:
        asked = recording.calls[call]
        return int(asked["stream"]), recording.pool_id(int(asked["pool"]))
    return _asker_of_most(moment)


def _asker_of_most(moment: Moment) -> tuple[int, tuple[int, int]]:
    """The stream that most is reserved for, and the default pool."""
    streams = np.unique(moment.blocks["stream"])
    if len(streams) == 0:
        return 0, (0, 0)
    held = [int(moment.blocks["size"][moment.blocks["stream"] == stream].sum()) for stream in streams]
    return int(streams[int(np.argmax(held))]), (0, 0)


def _suggestions(
    recording: Recording, recorded: int, failure: Failure | None, progress: Callable[[str], None]
) -> list[Candidate]:
    progress("trying other settings")
    capacity = failure.capacity if failure is not None else None
    tried = try_settings(recording, FEW, capacity)
    better = [
        each
        for each in tried
        if each.settings and each.fits and (failure is not None or each.peak_reserved_bytes < recorded)
    ]
    best = islice(sorted(better, key=lambda each: (each.peak_reserved_bytes, each.driver_ms)), MOST_SUGGESTIONS)
    return [with_paces(recording, each, capacity) for each in best]
