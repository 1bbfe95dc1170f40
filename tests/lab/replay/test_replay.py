"""Replaying PyTorch snapshots: recorded ones, truncated ones, and random programs of our own."""

from __future__ import annotations

import dataclasses
import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import allotment
from allotment._cli import main
from allotment._core.edge.words import Action
from allotment._formats.torch_snapshot import Snapshot, read_snapshot
from allotment.errors import FormatError, RequestError, SettingsError
from allotment.lab.replay.records import Kind
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import STEP, Recording, read_recording
from allotment.lab.replay.workload import History, lanes
from helpers.effort import sample
from helpers.recorded_programs import recorded_program

TRACES = Path(__file__).parents[1].parent / "traces"
SMALLEST_FIRST = sorted(TRACES.glob("*.pickle.gz"), key=lambda path: path.stat().st_size)
WHOLE = sample([path for path in SMALLEST_FIRST if not path.name.startswith(("late_", "ring_"))])
CUT = sample([path for path in SMALLEST_FIRST if path.name.startswith(("late_", "ring_"))])
FIGURES = {
    "peak_requested_bytes": "requested_bytes.all.peak",
    "peak_allocated_bytes": "allocated_bytes.all.peak",
    "peak_active_bytes": "active_bytes.all.peak",
    "peak_reserved_bytes": "reserved_bytes.all.peak",
    "device_allocations": "num_device_alloc",
    "device_frees": "num_device_free",
    "retries": "num_alloc_retries",
    "ooms": "num_ooms",
}


def name(path: Path) -> str:
    return path.name.removesuffix(".pickle.gz")


def recorded_stats(path: Path) -> dict[str, int]:
    stats: dict[str, int] = json.loads((TRACES / f"{name(path)}.stats.json").read_text())["stats"]
    return stats


def figures(result: Result) -> dict[str, int]:
    return {field: getattr(result, field) for field in FIGURES}


def without_first(snapshot: Snapshot, entries: int) -> Snapshot:
    """Return the snapshot as if the ring had lost its first entries."""
    traces = []
    for trace in snapshot.traces:
        columns: dict[str, Any] = {field.name: getattr(trace, field.name) for field in dataclasses.fields(trace)}
        lost = {key: value[entries:] for key, value in columns.items() if isinstance(value, np.ndarray)}
        traces.append(dataclasses.replace(trace, **lost))
    return dataclasses.replace(snapshot, traces=tuple(traces))


@pytest.mark.parametrize("path", WHOLE, ids=name)
def test_a_whole_history_comes_out_as_recorded_down_to_every_figure(path: Path) -> None:
    result = read_recording(path).replay()
    assert (result.matches_recording, result.first_difference, result.reason) == (True, None, None)
    stats = recorded_stats(path)
    assert figures(result) == {field: stats[key] for field, key in FIGURES.items()}


def test_a_history_of_memory_alone_is_not_copied() -> None:
    trace = read_recording(WHOLE[0]).trace
    others = dataclasses.replace(trace, action=np.where(np.arange(len(trace)) == 5, Action.SNAPSHOT, trace.action))
    names = ("action", "address", "size", "stream")
    whole, cut = (tuple(getattr(History(given), name) for name in names) for given in (trace, others))
    assert all(np.shares_memory(column, getattr(trace, name)) for column, name in zip(whole, names, strict=True))
    assert all(np.array_equal(*columns) for columns in zip(cut, (np.delete(c, 5) for c in whole), strict=True))


@pytest.mark.parametrize("path", CUT, ids=name)
def test_a_history_from_mid_run_is_completed_and_ends_in_the_recorded_state(path: Path) -> None:
    result = read_recording(path).replay()
    assert result.matches_recording is True
    assert result.reason is not None and "mid-run" in result.reason
    stats = recorded_stats(path)
    in_use = [(size, state) for _, size, state in result.blocks if state]
    assert sum(size for size, _ in in_use) == stats["active_bytes.all.current"]
    assert sum(size for _, size, _ in result.blocks) == stats["reserved_bytes.all.current"]
    assert result.peak_active_bytes <= stats["active_bytes.all.peak"]


@pytest.mark.parametrize("path", WHOLE, ids=name)
@pytest.mark.parametrize("part", [0.1, 0.37, 0.5, 0.77, 0.95])
def test_a_history_cut_off_anywhere_is_completed(path: Path, part: float) -> None:
    snapshot = read_snapshot(path)
    entries = int(part * max(len(trace) for trace in snapshot.traces))
    result = Recording(without_first(snapshot, entries)).replay()
    assert (result.matches_recording, result.first_difference) == (True, None)


def test_a_changed_entry_is_the_first_difference() -> None:
    snapshot = read_snapshot(TRACES / "gpt2_fixed.default.pickle.gz")
    sizes = snapshot.traces[0].size
    changed = next(i for i in range(5000, len(sizes)) if snapshot.traces[0].action[i] == 0)
    sizes[changed] += 512 * 4096
    result = Recording(snapshot).replay()
    assert result.matches_recording is False
    assert result.first_difference is not None
    assert result.first_difference.entry is not None and result.first_difference.entry >= changed


def test_a_changed_block_at_the_end_is_a_difference_without_an_entry() -> None:
    snapshot = read_snapshot(TRACES / "graph_train.default.pickle.gz")
    inactive = int(np.flatnonzero(snapshot.blocks.state == 0)[0])
    snapshot.blocks.state[inactive] = 2
    result = Recording(snapshot).replay()
    assert result.matches_recording is False
    assert result.first_difference is not None and result.first_difference.entry is None


@pytest.mark.parametrize("workload", ["graph_train"])
def test_default_run_replayed_as_expandable_reserves_what_the_expandable_run_did(workload: str) -> None:
    result = read_recording(TRACES / f"{workload}.default.pickle.gz").replay("expandable_segments:True")
    recorded = recorded_stats(TRACES / f"{workload}.expandable.pickle.gz")["reserved_bytes.all.peak"]
    assert result.peak_reserved_bytes == pytest.approx(recorded, rel=0.02)
    assert result.matches_recording is None and result.reason is not None


def test_two_runs_differ_only_by_when_other_streams_were_done() -> None:
    default = read_recording(TRACES / "streams_prefetch.default.pickle.gz")
    expandable = read_recording(TRACES / "streams_prefetch.expandable.pickle.gz")
    calls, others = default.calls, expandable.calls
    assert (calls["kind"] == others["kind"]).all()
    shared = calls["kind"] == Kind.FREE_SHARED
    assert (calls["due"][shared] != others["due"][shared]).any()
    for column in ("due", "stream"):
        calls[column][shared] = others[column][shared]
    result = default.replay("expandable_segments:True")
    assert result.peak_reserved_bytes == expandable.replay().peak_reserved_bytes


@pytest.mark.parametrize("path", [path for path in WHOLE if ".default" in path.name], ids=name)
def test_the_smallest_capacity_fits_and_the_step_below_does_not(path: Path) -> None:
    recording = read_recording(path)
    smallest = recording.fit()
    assert smallest is not None and smallest % STEP == 0
    assert recording.fits(smallest) and not recording.fits(smallest - STEP)
    result = recording.replay()
    assert result.peak_active_bytes <= smallest <= -(-result.peak_reserved_bytes // STEP) * STEP


def test_a_request_that_does_not_fit_is_counted_and_left_out_with_its_free() -> None:
    recording = read_recording(TRACES / "gpt2_fixed.default.pickle.gz")
    result = recording.replay(capacity=8 << 30)
    assert result.ooms > 0
    assert result.peak_reserved_bytes <= 8 << 30


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"settings": "expandable_segments:True"},
        {"settings": "roundup_power2_divisions:4"},
        {"capacity": 300 << 20},
        {"capacity": 300 << 20, "settings": "expandable_segments:True"},
        {"capacity": 300 << 20, "settings": "max_split_size_mb:21"},
        {"entries": 300},
        {"entries": 300, "settings": "expandable_segments:True"},
        {"pools": True},
        {"pools": True, "capacity": 300 << 20},
    ],
    ids=str,
)
def test_random_programs_come_out_as_recorded(seed: int, options: dict[str, Any]) -> None:
    data, stats = recorded_program(seed, **options)
    result = read_recording(data).replay()
    assert (result.matches_recording, result.first_difference) == (True, None)
    if "entries" not in options:
        assert result.ooms == stats["num_ooms"]
        assert result.peak_reserved_bytes == stats["reserved_bytes.all.peak"]
        assert result.device_allocations == stats["num_device_alloc"]


def test_segments_of_a_replay_that_went_its_own_way_find_their_place_without_searching() -> None:
    """Of two requests the second has no segment in the history, so all later ones are placed anew."""
    entries = [
        {"action": "alloc", "addr": (1 << 40) + (number << 21), "size": 1 << 20, "stream": number}
        for number in range(30_000)
    ]
    result = Recording(read_snapshot(pickle.dumps({"segments": [], "device_traces": [entries]}))).replay()
    assert result.matches_recording is False
    assert result.device_allocations == 30_000


def test_lanes_never_make_a_free_wait_for_one_that_completes_later() -> None:
    due = np.array([5, 3, 9, 3, 7, 2, 9], dtype=np.int32)
    taken = lanes(due)
    for lane in set(taken.tolist()):
        assert list(due[taken == lane]) == sorted(due[taken == lane])


def test_missing_entries_are_reported_and_not_as_a_difference() -> None:
    data, _ = recorded_program(3)
    snapshot = pickle.loads(data)
    trace = snapshot["device_traces"][0]
    snapshot["device_traces"][0] = [entry for entry in trace if entry["action"] != "free_requested"]
    result = read_recording(pickle.dumps(snapshot)).replay()
    assert result.matches_recording is None
    assert result.reason is not None and "missing" in result.reason


SNAPSHOT_ENTRY = {"action": "snapshot", "addr": 0, "size": 0, "stream": 0}
WITHOUT_HISTORY: list[Any] = [
    [],
    {"segments": []},
    {"segments": [], "device_traces": []},
    {"segments": [], "device_traces": [[]]},
    {"device_traces": [[], []]},
    {"device_traces": [[SNAPSHOT_ENTRY]]},
    {"device_traces": [[], [SNAPSHOT_ENTRY, {**SNAPSHOT_ENTRY, "action": "user_defined"}]]},
]


@pytest.mark.parametrize("device", [None, 0, 1])
@pytest.mark.parametrize("content", WITHOUT_HISTORY, ids=str)
def test_a_snapshot_without_history_is_refused_in_one_way(content: Any, device: int | None) -> None:
    with pytest.raises(FormatError, match=r"^the snapshot has no history, only the state at its end; record one"):
        read_recording(pickle.dumps(content), device)


def test_a_device_without_history_names_those_that_have_one() -> None:
    data, _ = recorded_program(3)
    snapshot = pickle.loads(data)
    snapshot["device_traces"].append([])
    with pytest.raises(RequestError, match="no history of device 1; it has one of 0"):
        read_recording(pickle.dumps(snapshot), 1)


def test_errors_about_a_file_name_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "run.pickle"
    for content in (b"", b"nonsense", pickle.dumps({"segments": []})):
        path.write_bytes(content)
        with pytest.raises(FormatError, match=f"^{path}: "):
            read_recording(path)
    for missing in (tmp_path / "missing", tmp_path):
        with pytest.raises(SystemExit) as leaving:
            main(["replay", str(missing)])
        assert leaving.value.code == 2
        assert str(missing) in capsys.readouterr().err


@pytest.mark.parametrize("expandable", [False, True])
@pytest.mark.parametrize("size", [512, 15 << 20])
def test_a_history_that_empties_the_cache_after_each_request_comes_out(size: int, expandable: bool) -> None:
    allocator = allotment.Allocator("sim:1GiB", settings=f"expandable_segments:{expandable}")
    allocator.record_history(context=None)
    for _ in range(100):
        allocator.free(allocator.malloc(size))
        allocator.empty_cache()
    result = Recording(read_snapshot(pickle.dumps(allocator.snapshot()))).replay()
    assert (result.matches_recording, result.first_difference) == (True, None)
    assert result.retries == 0


def test_many_pools_and_many_segments_are_found_without_searching() -> None:
    """Each of these would take minutes if any code examined all the others."""
    entries = []
    for number in range(30_000):
        at = {"addr": (1 << 40) + number * (2 << 20), "stream": 0, "pool_id": (0, 1 + number)}
        entries += [{"action": "segment_alloc", "size": 2 << 20, **at}, {"action": "alloc", "size": 512, **at}]
    result = Recording(read_snapshot(pickle.dumps({"segments": [], "device_traces": [entries]}))).replay()
    assert result.device_allocations == 30_000


def test_overlapping_blocks_are_refused() -> None:
    snapshot = read_snapshot(TRACES / "ring_gpt2.default.pickle.gz")
    there = np.flatnonzero(snapshot.traces[0].action == 1)
    snapshot.traces[0].size[there] = 1 << 29
    with pytest.raises(FormatError, match="does not fit"):
        Recording(snapshot)


def test_bad_settings_are_refused() -> None:
    with pytest.raises(SettingsError, match="expandable"):
        read_recording("sample").replay("expandable_segment:True")


# --- the command -----------------------------------------------------------------------------------------------------


def run_command(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as leaving:
        main(["replay", *arguments])
    return int(leaving.value.code or 0), capsys.readouterr().out


def test_json_has_every_figure_and_nothing_else(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run_command(capsys, "sample", "--fit", "--json")
    report = json.loads(output)
    assert code == 0
    assert set(report) == {
        "events", "compat", "compat_source",
        "peak_requested_bytes", "peak_allocated_bytes", "peak_active_bytes", "peak_reserved_bytes",
        "waste_ratio", "device_allocations", "device_frees", "retries", "ooms", "matches_recording", "reason",
        "first_difference", "smallest_capacity_bytes", "seconds", "placement", "recorded_peak_active_bytes",
        "driver_calls", "driver_ms", "calls_last_quarter", "waits", "chunks", "views", "pinned_memory",
    }  # fmt: skip
    assert report["matches_recording"] is True
    assert report["waste_ratio"] == report["peak_reserved_bytes"] / report["recorded_peak_active_bytes"]
    assert 0 < report["recorded_peak_active_bytes"] <= report["peak_active_bytes"]
    assert set(report["driver_calls"]) == {
        "reserve", "create", "map", "access", "unmap", "release", "malloc", "free", "record", "wait"
    }  # fmt: skip
    assert report["driver_calls"]["malloc"] == report["device_allocations"]


def test_people_get_a_table_lines_and_a_verdict(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run_command(capsys, "sample")
    assert code == 0
    assert "most reserved" in output and "8,694.0 MiB" in output
    assert "█" in output and "Every recorded decision was made again." in output


def test_a_capacity_that_is_too_small_exits_with_1(capsys: pytest.CaptureFixture[str]) -> None:
    code, output = run_command(capsys, "sample", "--capacity", "300MiB", "--json")
    assert code == 1 and json.loads(output)["ooms"] > 0


@pytest.mark.parametrize(
    "arguments", [["no/such/file"], ["sample", "--capacity", "many"], ["sample", "--settings", "nonsense:1"]]
)
def test_bad_input_exits_with_2(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> None:
    code, output = run_command(capsys, *arguments)
    assert (code, output) == (2, "")


def test_a_snapshot_can_come_from_standard_input() -> None:
    data = (TRACES / "graph_train.default.pickle.gz").read_bytes()
    command = [sys.executable, "-m", "allotment", "replay", "-", "--json"]
    ended = subprocess.run(command, input=data, capture_output=True, check=True)
    assert json.loads(ended.stdout)["matches_recording"] is True


def test_a_capacity_without_a_unit_is_not_taken_for_a_few_bytes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["replay", "sample", "--capacity", "80"])
    assert ended.value.code == 2
    assert "write 80GiB or 80MiB, or 80B for bytes" in capsys.readouterr().err


def test_the_version_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert not ended.value.code
    assert capsys.readouterr().out == f"allotment {allotment.__version__}\n"
