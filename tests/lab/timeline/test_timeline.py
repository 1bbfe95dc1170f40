"""A run over time and at any moment: compared with the engine at that moment, with `explain`, and with counting."""

from __future__ import annotations

import pickle
from dataclasses import astuple
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import allotment
from allotment._core.edge.words import BlockState
from allotment._viewer.answers import Run
from allotment.errors import FormatError, RequestError
from allotment.lab.explain.report import explain
from allotment.lab.replay.run import Recording, read_recording, read_source
from allotment.lab.timeline import timeline as module
from allotment.lab.timeline.pieces import PieceState
from allotment.lab.timeline.timeline import SEARCH, Timeline, timeline_of, timeline_of_end
from helpers.effort import sample

MIB = 1 << 20
TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.pickle.gz"), key=lambda path: path.stat().st_size)
OTHER_SETTINGS = ("expandable_segments:True", "placement:dense", "max_split_size_mb:64")
HELD = (PieceState.LIVE, PieceState.WAITING, PieceState.FREE, PieceState.PINNED)


@cache
def recording_in(path: Path) -> Recording:
    return read_recording(path)


@cache
def timeline_in(path: Path) -> Timeline:
    return timeline_of(recording_in(path))


def some_moments(timeline: Timeline) -> list[int]:
    return sorted({0, timeline.last, timeline.peak_reserved[0], *np.linspace(0, timeline.last, 7).astype(int).tolist()})


@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_every_block_is_where_the_engine_has_it_at_any_moment(path: Path) -> None:
    recording, timeline = recording_in(path), timeline_in(path)
    for moment in some_moments(timeline):
        expected, pieces = recording.moment(moment).blocks, timeline.pieces(moment)
        for state, block_state in (
            (PieceState.LIVE, BlockState.ACTIVE_ALLOCATED),
            (PieceState.WAITING, BlockState.ACTIVE_PENDING_FREE),
        ):
            blocks = expected[expected["state"] == block_state]
            assert np.array_equal(pieces.address[pieces.state == state], blocks["address"])
            assert np.array_equal(pieces.size[pieces.state == state], blocks["size"])
        free = expected[expected["state"] == BlockState.INACTIVE]
        assert pieces.bytes_in(PieceState.FREE) == free["releasable"].sum()
        assert pieces.bytes_in(PieceState.FREE, PieceState.PINNED) == free["size"].sum()


@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_pieces_tile_all_addresses_that_ever_had_memory(path: Path) -> None:
    timeline = timeline_in(path)
    for moment in some_moments(timeline):
        pieces = timeline.pieces(moment)
        place = timeline.axis.places(pieces.address)
        assert place[0] == 0 and place[-1] + pieces.size[-1] == timeline.axis.length
        assert np.array_equal(place[1:], place[:-1] + pieces.size[:-1])


@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_peaks_and_waste_are_those_of_explain(path: Path) -> None:
    recording, timeline = recording_in(path), timeline_in(path)
    reported = explain(recording)
    moment, most = timeline.peak_reserved
    assert most == reported.peak_reserved_bytes
    assert timeline.reserved_at(moment) == reported.peak.reserved_bytes
    assert timeline.waste(moment) == list(astuple(reported.waste))


@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_moments_have_the_numbers_that_explain_gives_them(path: Path) -> None:
    timeline, reported = timeline_in(path), explain(recording_in(path))
    assert reported.live_peak is not None
    shown = Run(timeline, {}).overview()
    assert shown["peak_reserved"]["entry"] == reported.peak.entry
    assert shown["peak_live"]["entry"] == reported.live_peak.entry
    assert np.all(np.diff(timeline.entries) >= 0)  # otherwise they could not be on an axis


@pytest.mark.parametrize("chosen", OTHER_SETTINGS)
@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_other_settings_reserve_what_a_replay_says(path: Path, chosen: str) -> None:
    recording = recording_in(path)
    timeline = timeline_of(recording, chosen)
    moment, reserved = timeline.peak_reserved
    pieces = timeline.pieces(moment)
    live = int(timeline.lives.requested[pieces.life[pieces.state == PieceState.LIVE]].sum())
    assert reserved == recording.replay(chosen).peak_reserved_bytes
    assert 0.99 * reserved <= pieces.bytes_in(*HELD) == timeline.reserved_at(moment) <= reserved
    assert sum(timeline.waste(moment)) == timeline.reserved_at(moment) - live


def counted(timeline: Timeline, low: int, high: int) -> tuple[int, int]:
    """Return the most in use and the most reserved in an interval, by examining each moment."""
    lives, units = timeline.lives, timeline.units
    live = [lives.requested[(lives.begin <= t) & (lives.freed > t)].sum() for t in range(low, high)]
    held = [units.size[(units.begin <= t) & (units.end > t)].sum() for t in range(low, high)]
    return int(max(live)), int(max(held))


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_columns_of_any_window_show_the_highest_moment_of_each(data: st.DataObject) -> None:
    timeline = timeline_in(TRACES[0])
    edges = data.draw(st.sets(st.integers(0, timeline.last + 1), min_size=2, max_size=12).map(sorted))
    by = data.draw(st.sampled_from(timeline.groupings))
    found = timeline.stretch(np.array(edges, dtype=np.int32), by)
    for i, (low, high) in enumerate(pairwise(edges)):
        assert (int(found.bands[i].sum()), int(found.reserved[i])) == counted(timeline, low, high)
        assert low <= found.moment[i] < high and low <= found.waste_moment[i] < high
        assert found.waste[i].tolist() == timeline.waste(int(found.waste_moment[i]))


def test_few_columns_gathered_from_many_are_the_same_as_walked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MOST_COLUMNS", 256)
    monkeypatch.setattr(module, "CHECKPOINTS", 7)
    coarse, fine = timeline_of(recording_in(TRACES[-1])), timeline_in(TRACES[-1])
    by = fine.groupings[0]
    whole = coarse.columns(by)
    assert len(whole.moment) == 256
    edges = np.linspace(0, fine.last + 1, 257).astype(np.int32)
    walked = fine.stretch(edges, by)
    for name in ("moment", "bands", "waste_moment", "waste", "reserved"):
        assert np.array_equal(getattr(whole, name), getattr(walked, name)), name
    assert np.array_equal(coarse.snapped(edges[::2] + np.int32(1))[1:-1], edges[2:-1:2])
    halves = coarse.stretch(edges[::2], by)
    assert np.array_equal(halves.bands.sum(axis=1), whole.bands.sum(axis=1).reshape(-1, 2).max(axis=1))


def small_run() -> Timeline:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11")
    allocator.record_history(context="all", stacks="python")
    kept = allocator.malloc(6 * MIB)
    other = allocator.malloc(6 * MIB)
    allocator.free(other)
    large = allocator.malloc(64 * MIB)
    allocator.free(large)
    assert kept
    return timeline_of(read_recording(pickle.dumps(allocator.snapshot())))


def test_a_block_pins_what_is_free_beside_it_in_its_segment() -> None:
    timeline = small_run()
    pieces = timeline.pieces(timeline.last)
    (life,) = pieces.life[pieces.state == PieceState.LIVE].tolist()
    assert pieces.pinned_by(life) == (14 * MIB, 0)
    assert pieces.bytes_in(PieceState.PINNED) == 14 * MIB
    assert pieces.bytes_in(PieceState.FREE) == 64 * MIB
    assert timeline.waste(timeline.last) == [0, 14 * MIB, 0, 0, 0, 64 * MIB]


def test_blocks_are_found_by_words_of_their_stack_and_by_size() -> None:
    timeline = small_run()
    assert timeline.search("test_timeline.py small_run").tolist() == [True, True, True]
    assert timeline.search("SMALL_RUN >10MiB").sum() == 1
    assert timeline.search("size<=6MiB life<3").sum() == 1
    assert timeline.search("nowhere.py").sum() == 0
    found = timeline.columns(SEARCH + ">10MiB")
    assert found.bands[:, 0].max() == 64 * MIB
    with pytest.raises(RequestError, match="cannot search for"):
        timeline.search("life>soon")


def test_a_block_from_before_the_history_keeps_its_stack_under_any_settings() -> None:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11")
    allocator.record_history(context="all", stacks="python")
    kept = [allocator.malloc(size * MIB) for size in (3, 6, 30)]
    allocator.record_history(context="all", stacks="python", clear_history=True)
    allocator.free(allocator.malloc(5 * MIB))
    recording = read_recording(pickle.dumps(allocator.snapshot()))
    for chosen in (None, *OTHER_SETTINGS):
        timeline = timeline_of(recording, chosen)
        there = timeline.alive(0)
        assert len(there) == len(kept)
        assert timeline.search("test_a_block_from_before")[there].all()


def test_the_line_that_asked_names_the_band() -> None:
    timeline = small_run()
    assert timeline.groupings[0] == "line"
    assert all("small_run" in name for name in timeline.grouping("line").names)


def test_what_the_program_calls_its_memory_names_bands_too() -> None:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:newest")
    allocator.record_history()
    allocator.tenant("dashboard").malloc(12 * MIB)
    allocator.malloc(14 * MIB)
    timeline = timeline_of(read_recording(pickle.dumps(allocator.snapshot())))
    assert "tenant" in timeline.groupings and "scope" not in timeline.groupings
    grouping = timeline.grouping("tenant")
    assert sorted(grouping.names) == ["dashboard", "nothing said"]
    held = timeline.columns("tenant").bands[-1]
    assert dict(zip(grouping.names, held.tolist(), strict=True)) == {"dashboard": 12 * MIB, "nothing said": 14 * MIB}


def test_a_snapshot_without_a_history_is_one_moment() -> None:
    allocator = allotment.Allocator("sim:1GiB")
    allocator.malloc(6 * MIB)
    timeline = timeline_of_end(read_source(pickle.dumps(allocator.snapshot())))
    pieces = timeline.pieces(0)
    assert timeline.last == 0 and timeline.peak_reserved == (0, 20 * MIB) and timeline.peak_live == (0, 6 * MIB)
    assert (pieces.bytes_in(PieceState.LIVE), pieces.bytes_in(PieceState.PINNED)) == (6 * MIB, 14 * MIB)
    assert timeline.columns().bands.sum() == 6 * MIB


def test_a_snapshot_of_nothing_is_refused() -> None:
    with pytest.raises(FormatError, match="neither a history nor memory"):
        timeline_of_end(read_source(pickle.dumps({"segments": [], "device_traces": []})))
