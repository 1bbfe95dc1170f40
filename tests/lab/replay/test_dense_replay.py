"""Recorded histories under dense placement: reserved memory, driver calls, and capacities that fit."""

from __future__ import annotations

import pickle
import random
from pathlib import Path

import pytest

from allotment import Allocator, Stream
from allotment.lab.explain.report import at_peak, explain
from allotment.lab.replay.run import read_recording

TRACES = Path(__file__).parents[2] / "traces"
SNAPSHOTS = [path for path in sorted(TRACES.glob("*.default.pickle.gz")) if "graph" not in path.name]


@pytest.mark.parametrize("path", SNAPSHOTS, ids=lambda path: path.name.split(".")[0])
def test_hardly_more_is_reserved_than_was_live(path: Path) -> None:
    recording = read_recording(path)

    dense = recording.replay("placement:dense")

    assert dense.ooms == 0 and dense.placement == "dense"
    assert dense.waste_ratio is not None and dense.waste_ratio <= 1.03
    assert dense.peak_reserved_bytes < recording.replay("expandable_segments:True").peak_reserved_bytes
    assert dense.driver_calls["create"] - dense.driver_calls["release"] == dense.chunks > 0
    assert dense.views >= dense.chunks


def test_waste_is_measured_by_what_was_live_in_the_recording() -> None:
    """Blocks that wait for other streams are reused earlier: less is active, and that is not waste."""
    recording = read_recording("sample")

    dense = recording.replay("placement:dense")
    torch = recording.replay("expandable_segments:True")

    assert dense.waits > 0
    assert dense.peak_active_bytes < dense.recorded_peak_active_bytes == torch.peak_active_bytes


@pytest.mark.parametrize("written_by", ["us", "PyTorch"])
def test_memory_that_moves_in_a_history_is_not_taken_for_released(tmp_path: Path, written_by: str) -> None:
    allocator = Allocator("sim:1GiB", settings="placement:dense,dense_slack:0")
    allocator.record_history("all")
    blocks = [allocator.malloc(64 << 20) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.free(allocator.malloc(200 << 20))
    assert allocator.stats()["dense.stitches"] == 1
    allocator.settings = "garbage_collection_threshold:0.9"
    snapshot = allocator.snapshot()
    if written_by == "PyTorch":
        del snapshot["allotment_views"]  # its format has no room for them
    (tmp_path / "dense.pickle").write_bytes(pickle.dumps(snapshot))

    recording = read_recording(tmp_path / "dense.pickle")

    torch = recording.replay("expandable_segments:True")
    assert torch.driver_calls["unmap"] == torch.driver_calls["release"] == 0
    assert torch.recorded_peak_active_bytes == allocator.stats()["active_bytes.all.peak"]
    assert recording.settings.dense_slack == 0 and recording.settings.garbage_collection_threshold == 0.9


def test_a_device_hardly_larger_than_what_is_live_is_enough() -> None:
    recording = read_recording(TRACES / "streams_prefetch.default.pickle.gz")

    smallest = recording.fit("placement:dense")

    assert smallest is not None
    assert smallest <= 1.02 * recording.replay("placement:dense").recorded_peak_active_bytes
    assert not recording.fits(recording.replay().peak_active_bytes // 2, "placement:dense")


def test_a_run_under_dense_placement_is_explained_by_that_placement(tmp_path: Path) -> None:
    allocator = Allocator("sim:1GiB", settings="placement:dense,dense_grain:20")
    allocator.record_history()
    blocks = [allocator.malloc(3 << 20) for _ in range(20)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.malloc(50 << 20)
    allocator.history.dump_snapshot(tmp_path / "run.pickle")
    recording = read_recording(tmp_path / "run.pickle")
    assert (recording.settings.placement, recording.settings.dense_grain) == ("dense", 20)
    assert recording.replay().peak_reserved_bytes == allocator.stats()["reserved_bytes.all.peak"]
    found = explain(recording)
    assert found.matches_recording is None
    assert found.peak.reserved_bytes == allocator.stats()["reserved_bytes.all.peak"]
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    assert sum(holder.bytes for holder in found.peak.holders) == found.peak.live_bytes == 80 << 20


@pytest.mark.parametrize("path", SNAPSHOTS[:2], ids=lambda path: path.name)
def test_what_dense_placement_would_waste_adds_up(path: Path) -> None:
    recording = read_recording(path)
    found = at_peak(recording, "placement:dense")
    assert found.peak_reserved_bytes == recording.replay("placement:dense").peak_reserved_bytes
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    assert found.live_peak.live_bytes == at_peak(recording).live_peak.live_bytes


@pytest.mark.parametrize("seed", range(4))
def test_a_run_under_dense_placement_whose_history_begins_in_mid_run_is_explained(seed: int) -> None:
    choose = random.Random(seed)
    allocator = Allocator("sim:1GiB", settings="placement:dense")
    allocator.record_history(max_entries=100)
    stream = Stream(allocator)
    live: dict[int, int] = {}
    for _ in range(400):
        if live and choose.random() < 0.5:
            block = choose.choice(list(live))
            del live[block]
            allocator.free(block)
        else:
            size = choose.choice([512, 5000, 1 << 20, 3 << 20, 9 << 20, 25 << 20])
            live[allocator.malloc(size, choose.choice([0, stream]))] = size

    recording = read_recording(pickle.dumps(allocator.snapshot()))

    assert recording.in_use()[-1] == sum(live.values())
    found = explain(recording)
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    assert recording.replay().ooms == 0
