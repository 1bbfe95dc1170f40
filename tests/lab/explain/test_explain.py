"""Explaining recorded runs: the causes of waste one by one, a request that failed, and the output of the command."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest

import allotment
from allotment._cli import main
from allotment._core.records.history import set_user_metadata
from allotment._formats.pickle_columns import Frame
from allotment.errors import FormatError, OutOfMemoryError
from allotment.lab.api import peak_of
from allotment.lab.explain.difference import compare
from allotment.lab.explain.holders import UNKNOWN, line_of
from allotment.lab.explain.report import Explanation, explain, explain_end
from allotment.lab.replay.run import read_recording, read_source
from allotment.lab.tune.candidates import FEW
from allotment.lab.tune.search import Goal, try_settings, tune
from helpers.effort import sample
from helpers.recorded_programs import prefetching

MIB = 1 << 20
TRACES = sorted((Path(__file__).parents[2] / "traces").glob("*.pickle.gz"), key=lambda path: path.stat().st_size)


def recorded(allocator: allotment.Allocator) -> bytes:
    return pickle.dumps(allocator.snapshot())


def an_allocator(settings: str = "", limit: str | None = None) -> allotment.Allocator:
    allocator = allotment.Allocator("sim:1GiB", settings=f"compat:2.11{settings}", limit=limit)
    allocator.record_history(context="all", stacks="python")
    return allocator


def explained(allocator: allotment.Allocator) -> Explanation:
    found = explain(read_recording(recorded(allocator)))
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    return found


@pytest.mark.parametrize(
    "file",
    [
        "??",
        "",
        "offloadstuff.c",
        "python_engine.cpp",
        "/build/Python-3.12.3/Objects/methodobject.c",
        "./Include/internal/pycore_call.h",
        "/usr/include/c++/13/functional",
        "/opt/venv/lib/python3.12/site-packages/torch/lib/libtorch_cuda.so",
        "/usr/lib/libpython3.12.so.1.0",
        "/usr/bin/python3.12",
        "/usr/lib/python3.12/copy.py",
    ],
)
def test_the_line_of_a_stack_is_the_programs_own_whatever_pytorch_calls_compiled_frames(file: str) -> None:
    own = Frame("step", "/home/user/train.py", 41)
    assert line_of((Frame("inner", file, 3), own, Frame("outer", file, 4))) == "/home/user/train.py:41 step"


@pytest.mark.parametrize("file", ["<stdin>", "/tmp/ipykernel_7/12.py", "cell 3", "C:\\me\\train.py", "/home/me/main"])
def test_files_of_python_are_the_programs_own(file: str) -> None:
    assert line_of((Frame("at::empty", "??", 0), Frame("f", file, 3))) == f"{file}:3 f"


@pytest.mark.parametrize("path", sample(TRACES), ids=lambda path: path.name)
def test_causes_of_waste_add_up_in_recorded_runs(path: Path) -> None:
    recording = read_recording(path)
    found = explain(recording)
    result = recording.replay()
    assert found.peak_reserved_bytes == result.peak_reserved_bytes
    assert 0.99 * result.peak_reserved_bytes <= found.peak.reserved_bytes <= result.peak_reserved_bytes
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    assert sum(holder.bytes for holder in found.peak.holders) == found.peak.live_bytes
    assert found.bounds is not None and found.live_peak is not None
    assert found.bounds.peak_live_bytes == found.live_peak.live_bytes <= found.bounds.packing_bytes
    assert all(each.peak_reserved_bytes < 0.99 * result.peak_reserved_bytes for each in found.suggestions)


def test_rounding_is_what_blocks_have_beyond_the_requested_size() -> None:
    allocator = an_allocator()
    kept = [allocator.malloc(1000) for _ in range(4)]
    allocator.malloc(12 * MIB)
    found = explained(allocator)
    assert found.waste.rounding == len(kept) * 24
    assert found.waste.pieces == 2 * MIB - 4 * 1024


def test_free_memory_of_other_streams_is_distinguished() -> None:
    allocator = an_allocator()
    stream = allotment.Stream(allocator)
    allocator.free(allocator.malloc(12 * MIB, stream))
    allocator.malloc(14 * MIB)
    assert explained(allocator).waste.other_streams == 12 * MIB


def test_free_memory_of_private_pools_is_distinguished() -> None:
    allocator = an_allocator()
    with allocator.pool() as pool:
        allocator.free(allocator.malloc(12 * MIB))
        allocator.malloc(14 * MIB)
    allocator.malloc(16 * MIB)
    assert explained(allocator).waste.private_pools == 12 * MIB
    del pool


def test_freed_blocks_that_wait_for_other_streams_are_distinguished() -> None:
    allocator = an_allocator()
    stream = allotment.Stream(allocator)
    allocator.free(allocator.malloc(14 * MIB))  # a history that shows when frees are done
    allocator.empty_cache()
    block = allocator.malloc(12 * MIB)
    allocator.device.launch(stream.handle)
    allocator.record_stream(block, stream)
    allocator.free(block)
    allocator.malloc(14 * MIB)
    assert explained(allocator).waste.waiting == 12 * MIB


def test_freed_memory_that_waits_for_streams_is_not_counted_as_live(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    allocator = prefetching()
    found = explained(allocator)
    assert found.bounds is not None and found.live_peak is not None
    assert found.waste.waiting > 500 * MIB  # otherwise this run proves nothing
    assert found.bounds.peak_live_bytes == found.live_peak.live_bytes == 32 * MIB
    assert 32 * MIB <= found.bounds.packing_bytes < 80 * MIB
    file = tmp_path / "prefetching.pickle"
    file.write_bytes(recorded(allocator))
    assert "less than the peak of memory in use, 32.0 MiB" in " ".join(run(capsys, str(file))[1].split())


def barely_wasteful() -> allotment.Allocator:
    """940 MiB, of which other settings would save 8."""
    allocator = an_allocator()
    kept = [allocator.malloc(60 * MIB) for _ in range(15)]
    block = allocator.malloc(4 * MIB)  # of a segment of 20 MiB
    kept.append(allocator.malloc(20 * MIB))
    del block
    return allocator


def test_settings_that_save_less_than_one_percent_are_not_advised_by_explain_nor_by_tune(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "barely.pickle"
    file.write_bytes(recorded(barely_wasteful()))
    recording = read_recording(file)
    tried = try_settings(recording, FEW, None)
    most = recording.replay().peak_reserved_bytes
    assert any(0.99 * most < each.peak_reserved_bytes < most for each in tried)  # something is omitted
    assert explain(recording).suggestions == [] == tune(recording, Goal.parse("balanced")).advice
    for command in ("explain", "tune"):
        with pytest.raises(SystemExit):
            main([command, str(file)])
        out = " ".join(capsys.readouterr().out.split())
        assert "To paste" not in out and "saves 1 % or more" in out


def test_settings_that_need_more_at_another_pace_of_streams_are_not_advised(monkeypatch: pytest.MonkeyPatch) -> None:
    recording = read_recording("sample")
    named = {each.settings for each in explain(recording).suggestions}
    trial = type(recording).trial
    recorded_settings = recording.settings

    def worse_when_late(self: Any, settings: Any, capacity: Any = None, share: float = 1.0, pace: float = 1.0) -> Any:
        peak, *others = trial(self, settings, capacity, share, pace)
        is_late = pace == 2.0 and settings.expandable_segments and settings != recorded_settings
        return (10 * peak if is_late else peak, *others)

    monkeypatch.setattr(type(recording), "trial", worse_when_late)
    left = {each.settings for each in explain(recording).suggestions}
    assert any("expandable" in settings for settings in named)
    assert left == {settings for settings in named if "expandable" not in settings} and left


def test_a_free_segment_that_does_not_serve_could_have_been_released() -> None:
    allocator = an_allocator()
    allocator.free(allocator.malloc(12 * MIB))
    allocator.malloc(14 * MIB)
    assert explained(allocator).waste.unreleased == 12 * MIB


def test_holders_are_the_lines_that_allocated() -> None:
    allocator = an_allocator()
    many = [allocator.malloc(MIB) for _ in range(3)]
    one = allocator.malloc(2 * MIB)
    first, second = explained(allocator).peak.holders
    assert (first.bytes, first.blocks) == (3 * MIB, len(many))
    assert (second.bytes, second.blocks) == (2 * MIB, 1)
    assert Path(__file__).name in first.where and first.where != second.where
    allocator.free(one)


def allocated_by(allocator: allotment.Allocator, size: int) -> int:
    return allocator.malloc(size)


def test_holders_of_most_in_use_are_shown_if_that_is_another_moment() -> None:
    allocator = an_allocator()
    many = [allocator.malloc(2 * MIB) for _ in range(20)]  # two segments, of which one block each stays
    for place, block in enumerate(many):
        if place % 10:
            allocator.free(block)
    allocator.malloc(19 * MIB)
    found = explained(allocator)
    assert found.live_peak is not None
    assert (found.peak.live_bytes, found.live_peak.live_bytes) == (23 * MIB, 40 * MIB)
    assert found.live_peak.holders[0].blocks == len(many)


def plateau() -> allotment.Allocator:
    """Reserves 800 MiB with 760 of them in use, frees that, and then reserves 2 MiB more with little in use."""
    allocator = an_allocator()
    for block in [allocator.malloc(38 * MIB) for _ in range(20)]:
        allocator.free(block)
    for block in [allocator.malloc(38 * MIB) for _ in range(20)]:
        allocator.free(block)
    allocator.malloc(MIB // 2)
    return allocator


def test_of_the_moments_near_the_peak_the_one_with_most_in_use_is_explained(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    allocator = plateau()
    found = explained(allocator)
    assert found.peak_reserved_bytes == found.peak.reserved_bytes + 2 * MIB == 762 * MIB
    assert found.peak.live_bytes == 760 * MIB and found.waste.total == 0
    assert found.peak.holders[0].blocks == 20
    file = tmp_path / "plateau.pickle"
    file.write_bytes(recorded(allocator))
    out = " ".join(run(capsys, str(file))[1].split())
    assert "762.0 MiB reserved at most" in out and f"at entry {found.peak.entry}: 760.0 MiB reserved" in out
    assert found.peak.entry < 60 and json.loads(run(capsys, str(file), "--json")[1])["peak_reserved_bytes"] == 762 * MIB


def test_ratios_of_reserved_memory_are_those_of_the_most_that_was_reserved() -> None:
    one, other = peak_of(recorded(plateau())), peak_of(recorded(barely_wasteful()))
    assert compare(one, other).ratios["peak_reserved"] == 940 / 762


def test_holders_by_stack_distinguish_the_callers_of_a_line() -> None:
    allocator = an_allocator()
    kept = [allocated_by(allocator, 14 * MIB)]
    kept += [allocated_by(allocator, 12 * MIB)]
    peak = explained(allocator).peak
    assert [(each.bytes, each.blocks) for each in peak.holders] == [(26 * MIB, len(kept))]
    assert [(each.bytes, each.blocks) for each in peak.stacks] == [(14 * MIB, 1), (12 * MIB, 1)]
    assert all(each.frames[0]["name"] == "allocated_by" for each in peak.stacks)


def test_a_line_whose_blocks_keep_free_memory_from_the_device_is_charged_for_it() -> None:
    allocator = an_allocator()
    blocks = [allocator.malloc(2 * MIB) for _ in range(10)]  # one segment
    first = blocks[0]
    for block in blocks[1:]:
        allocator.free(block)
    allocator.malloc(30 * MIB)
    found = explained(allocator)
    holder = next(each for each in found.peak.holders if each.bytes == 2 * MIB)
    assert holder.pinned_bytes == found.waste.pieces == 18 * MIB
    allocator.free(first)


def labelled() -> allotment.Allocator:
    """A block of each kind of label, one megabyte more each."""
    allocator = allotment.Allocator("sim:1GiB", settings="compat:newest")
    allocator.record_history()
    allocator.malloc(2 * MIB)
    set_user_metadata("weights")
    allocator.malloc(3 * MIB)
    set_user_metadata("")
    allocator.history.annotate(allocator.malloc(4 * MIB), "loss")
    allocator.tenant("dashboard").malloc(5 * MIB)
    allocator.history.record_annotation({"name": "step", "stage": "START"})
    allocator.history.record_annotation({"name": "forward", "stage": "START"})
    allocator.malloc(6 * MIB)
    allocator.history.record_annotation({"name": "forward", "stage": "END"})
    allocator.malloc(7 * MIB)
    return allocator


def with_a_microsecond_between(snapshot: dict[str, Any]) -> bytes:
    """Entries and annotations in the order in which they were made, so that the clock's resolution does not matter."""
    entries, notes = snapshot["device_traces"][0], snapshot["external_annotations"]
    for time_us, entry in enumerate(entries):
        entry["time_us"] = 10 * time_us
    sizes = [entry["size"] for entry in entries if entry["action"] == "alloc"]
    begin = next(entry["time_us"] for entry in entries if entry["action"] == "alloc" and entry["size"] == 6 * MIB)
    end = next(entry["time_us"] for entry in entries if entry["action"] == "alloc" and entry["size"] == 7 * MIB)
    assert sizes == [size * MIB for size in range(2, 8)]
    for note, time_us in zip(notes, (begin - 2, begin - 1, end - 1), strict=True):
        note["time_us"] = time_us
    return pickle.dumps(snapshot)


def test_memory_is_shown_under_the_programs_own_names() -> None:
    peak = explain(read_recording(with_a_microsecond_between(labelled().snapshot()))).peak
    said = {(each.source, each.name): each.bytes for each in peak.categories if each.name}
    assert said == {
        ("metadata", "weights"): 3 * MIB,
        ("annotation", "loss"): 4 * MIB,
        ("tenant", "dashboard"): 5 * MIB,
        ("scope", "forward"): 6 * MIB,
        ("scope", "step"): 7 * MIB,
    }
    for source in ("metadata", "annotation", "tenant", "scope"):
        assert sum(each.bytes for each in peak.categories if each.source == source) == peak.live_bytes


def test_annotations_that_make_no_sense_say_nothing() -> None:
    allocator = an_allocator()
    allocator.malloc(2 * MIB)
    snapshot = allocator.snapshot()
    snapshot["external_annotations"] = [
        {"name": "step", "stage": "START", "time_us": 1 << 63},
        {"name": "step", "stage": "START", "time_us": -5},
        {"name": [], "stage": "START", "time_us": 1},
        {"name": "step", "stage": [], "time_us": 1},
        {"name": "step", "stage": "END", "time_us": 1},
        {"stage": "START"},
    ]
    assert explain(read_recording(pickle.dumps(snapshot))).peak.categories == []


def test_compiled_regions_are_distinguished() -> None:
    allocator = an_allocator()
    allocator.malloc(2 * MIB)
    snapshot = allocator.snapshot()
    for entry in snapshot["device_traces"][0]:
        entry["compile_context"] = "0/0"
    peak = explain(read_recording(pickle.dumps(snapshot))).peak
    assert [(each.source, each.name, each.bytes) for each in peak.categories] == [("compiled", "0/0", 2 * MIB)]


def test_the_end_of_a_snapshot_without_history_has_tenants_too() -> None:
    allocator = allotment.Allocator("sim:1GiB")
    allocator.tenant("dashboard").malloc(2 * MIB)
    allocator.malloc(3 * MIB)
    peak = explain_end(read_source(recorded(allocator))).peak
    assert [(each.name, each.bytes) for each in peak.categories] == [("", 3 * MIB), ("dashboard", 2 * MIB)]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        ({"device": 0, "bytes": {"context": 5, "less": -1, "text": "9"}}, {"context": 5}),
        ({"device": 1, "bytes": {"context": 5}}, None),
        ({"device": 0, "bytes": 7}, None),
        ("nothing", None),
    ],
)
def test_of_what_the_process_held_only_figures_are_read(field: object, expected: dict[str, int] | None) -> None:
    allocator = an_allocator()
    allocator.malloc(1000)
    snapshot = allocator.snapshot() | {"allotment_process": field}
    assert explain_end(read_source(pickle.dumps(snapshot))).process == expected


def test_the_line_of_a_stack_is_the_users_own() -> None:
    library = Frame("empty", "/usr/lib/python3/site-packages/torch/functional.py", 10)
    assert line_of((Frame("call", "??", 0), library, Frame("step", "train.py", 33))) == "train.py:33 step"
    assert line_of((Frame("call", "??", 0), library)) == f"{library.filename}:10 empty"
    assert line_of(()) == UNKNOWN


def out_of_memory() -> allotment.Allocator:
    """64 MiB, every second 2 MiB of them in use: a request for 20 MiB fails, though half is free."""
    allocator = an_allocator(",expandable_segments:True", limit="80MiB")
    blocks = [allocator.malloc(2 * MIB) for _ in range(40)]
    for block in blocks[::2]:
        allocator.free(block)
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(30 * MIB)
    return allocator


def test_a_failed_request_is_reported_with_its_line_and_the_free_memory() -> None:
    failure = explained(out_of_memory()).failure
    assert failure is not None
    assert failure.size == 30 * MIB
    assert any(frame["filename"].endswith(Path(__file__).name) for frame in failure.frames)
    here = [memory for memory in failure.free if "pieces" in memory.reason]
    assert len(here) == 1
    assert Path(__file__).name in here[0].reason


def test_of_several_failed_requests_the_first_is_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    allocator = out_of_memory()
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(40 * MIB)
    failure = explained(allocator).failure
    assert failure is not None and (failure.size, failure.count) == (30 * MIB, 2)
    file = tmp_path / "oom.pickle"
    file.write_bytes(recorded(allocator))
    assert "the first of 2 requests that failed" in " ".join(run(capsys, str(file))[1].split())


def test_what_is_suggested_after_a_failure_fits() -> None:
    found = explained(out_of_memory())
    assert found.failure is not None
    assert all(each.fits for each in found.suggestions)


def test_where_a_limit_stood_in_the_way_suggestions_keep_to_it() -> None:
    found = explained(out_of_memory())
    assert found.failure is not None
    assert found.failure.capacity == 80 * MIB  # though the device has far more
    assert all(each.peak_reserved_bytes <= 80 * MIB for each in found.suggestions)
    assert "a limit of 80.0 MiB" in found.failure.free[0].reason


def test_a_snapshot_without_history_is_explained_by_what_it_holds() -> None:
    allocator = allotment.Allocator("sim:1GiB")
    kept = allocator.malloc(1000)
    allocator.free(allocator.malloc(12 * MIB))
    found = explain_end(read_source(recorded(allocator)))
    assert found.waste.total == found.peak.reserved_bytes - found.peak.live_bytes
    assert (found.peak.live_bytes, found.waste.rounding, found.waste.unreleased) == (1000, 24, 12 * MIB)
    assert found.bounds is None and found.failure is None and found.suggestions == []
    allocator.free(kept)


def test_a_snapshot_of_nothing_is_refused() -> None:
    with pytest.raises(FormatError, match="neither a history nor memory"):
        explain_end(read_source(pickle.dumps({"segments": [], "device_traces": []})))


# --- the command ---


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["explain", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_json_has_the_promised_keys(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "oom.pickle"
    file.write_bytes(recorded(out_of_memory()))
    code, out = run(capsys, str(file), "--json")
    report: dict[str, Any] = json.loads(out)
    assert code == 0
    assert set(report["failure"]) >= {"entry", "size", "stream", "pool", "frames", "free"}
    assert set(report["peak"]) >= {"entry", "time_us", "live_bytes", "reserved_bytes", "holders"}
    assert set(report["peak"]["holders"][0]) >= {"where", "bytes", "blocks"}
    assert set(report["peak"]["stacks"][0]) == {"frames", "bytes", "blocks"}
    waste = report["waste"]
    assert waste.pop("total") == sum(waste.values())
    assert set(waste) == {"rounding", "pieces", "other_streams", "private_pools", "waiting", "unreleased"}
    assert set(report["bounds"]) == {"peak_live_bytes", "packing_bytes"}


def test_people_see_the_failure_and_the_line_to_paste(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "oom.pickle"
    file.write_bytes(recorded(out_of_memory()))
    code, out = run(capsys, str(file))
    assert code == 0
    assert "Out of memory" in out and "30.0 MiB" in out
    assert "reserved and not in use" in out
    assert "By stack" in out and " < " in out


def test_the_screen_says_what_a_change_gains_and_costs(capsys: pytest.CaptureFixture[str]) -> None:
    code, out = run(capsys, "sample")
    found = explain(read_recording("sample"))
    first = found.suggestions[0]
    assert code == 0 and found.driver_ms is not None
    line = next(line for line in out.splitlines() if first.settings in line and "To paste" not in line)
    assert f"{(first.peak_reserved_bytes - found.peak.reserved_bytes) / MIB:,.1f} MiB" in line
    assert f"{first.driver_ms - found.driver_ms:+,.1f} ms" in line


def test_the_shown_device_of_several_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    snapshots = []
    for size in (12, 14):
        allocator = an_allocator()
        kept = [allocator.malloc(size * MIB) for _ in range(size)]
        snapshots.append(allocator.snapshot())
        del kept
    both = {**snapshots[0], "device_traces": [each["device_traces"][0] for each in snapshots]}
    both["segments"] = [{**each, "device": 0} for each in snapshots[0]["segments"]]
    both["segments"] += [{**each, "device": 1} for each in snapshots[1]["segments"]]
    file = tmp_path / "two.pickle"
    file.write_bytes(pickle.dumps(both))
    assert "Device 1 (of 2; --device 0 shows another)" in run(capsys, str(file))[1]
    code, out = run(capsys, str(file), "--device", "0")
    assert code == 0 and "Device 0 (of 2; --device 1 shows another)" in out
    assert json.loads(run(capsys, str(file), "--json")[1])["devices"] == [0, 1]


def test_a_name_with_markup_is_shown_as_it_is(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    allocator = an_allocator()
    code = compile("kept = allocator.malloc(1000)", "[bold]train[/].py", "exec")
    exec(code, {"allocator": allocator})
    file = tmp_path / "markup.pickle"
    file.write_bytes(recorded(allocator))
    assert "[bold]train[/].py" in run(capsys, str(file))[1]


def test_anything_but_a_snapshot_is_bad_input(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "text"
    file.write_text("hello")
    assert run(capsys, str(file))[0] == 2


def test_a_run_that_reserved_nothing_is_explained_without_causes() -> None:
    allocator = an_allocator(limit="1MiB")
    with pytest.raises(OutOfMemoryError):
        allocator.malloc(2 * MIB)
    found = explained(allocator)
    assert found.peak.reserved_bytes == 0
    assert not [advice for advice in found.advice if advice.kind == "program"]
