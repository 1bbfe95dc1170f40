"""Trying settings on recorded runs."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

import allotment
from allotment._cli import main
from allotment._settings import Settings
from allotment.errors import RequestError
from allotment.lab.replay.run import SAMPLE, read_recording
from allotment.lab.tune.candidates import FEW, all_candidates, is_ours
from allotment.lab.tune.search import Goal, try_settings, tune, with_paces

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def recording():
    return read_recording(SAMPLE)


@pytest.mark.parametrize("limited", [False, True])
@pytest.mark.parametrize("finely", [False, True])
def test_every_candidate_is_valid_and_stands_once(limited: bool, finely: bool) -> None:
    candidates = list(all_candidates(limited, finely))
    assert len(set(candidates)) == len(candidates)
    for text in candidates:
        assert is_ours(text) == (Settings.parse(text).placement != "torch")
    assert len({Settings.parse(text).dense_grain for text in candidates if is_ours(text)}) >= 3


def test_a_candidate_is_what_a_replay_under_it_says(recording) -> None:
    for candidate in try_settings(recording, FEW, None):
        result = recording.replay(Settings.parse(candidate.settings, compat=recording.compat))
        assert candidate.peak_reserved_bytes == result.peak_reserved_bytes
        assert candidate.ooms == result.ooms


def test_the_least_memory_is_the_least_of_all_that_were_tried(recording) -> None:
    tuned = tune(recording, Goal.parse("min-memory"))
    assert tuned.goal_met
    assert tuned.best.peak_reserved_bytes == min(each.peak_reserved_bytes for each in tuned.candidates if each.fits)
    assert len(tuned.candidates) == len(list(all_candidates(limited=False)))


def test_without_time_the_few_that_help_most_often_are_tried_in_part(recording) -> None:
    tuned = tune(recording, Goal.parse("balanced"), budget=0.0)
    assert 0 < len(tuned.candidates) < len(list(all_candidates(limited=False)))


def test_a_device_that_is_too_small_is_a_goal_that_is_missed(recording) -> None:
    live = recording.replay().recorded_peak_active_bytes
    assert not tune(recording, Goal.parse(f"fit:{live // 2}"), budget=0.0).goal_met
    assert tune(recording, Goal.parse(f"fit:{2 * live}"), budget=0.0).goal_met


def test_what_another_pace_of_streams_would_need_is_said_and_holds_the_real_run(recording) -> None:
    predicted = try_settings(recording, ["expandable_segments:True"], None)[0]
    least, most = with_paces(recording, predicted, None).paced_bytes
    real = read_recording(TRACES / "streams_prefetch.expandable.pickle.gz").replay().peak_reserved_bytes
    assert least <= predicted.peak_reserved_bytes <= most
    assert predicted.peak_reserved_bytes != real  # the GPU was done at other requests, which no replay can know
    assert least <= real <= most


def test_the_pace_of_streams_plays_no_part_where_no_free_waited() -> None:
    recording = read_recording(TRACES / "gpt2_fixed.default.pickle.gz")
    predicted = try_settings(recording, ["expandable_segments:True"], None)[0]
    assert with_paces(recording, predicted, None).paced_bytes is None


def test_settings_that_come_to_the_same_are_one_row(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["tune", SAMPLE])
    rows = [line.split("│")[3:5] for line in capsys.readouterr().out.splitlines() if " MiB │" in line]
    assert len(rows) > 5
    figures = [tuple(row) for row in rows[1:]]  # the first is as recorded
    assert len(set(figures)) == len(figures)


@pytest.mark.parametrize("text", ["", "fit", "fit:", "fit:nothing", "fit:0", "fit:80", "fit:9999PiB", "fast"])
def test_an_unknown_goal_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        Goal.parse(text)


def test_the_command_has_the_promised_keys_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE, "--json", "--budget", "0"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert set(report) == {"recorded", "best", "candidates", "tried", "seconds", "goal", "goal_met", "phases"}
    assert set(report["best"]) >= {"settings", "peak_reserved_bytes", "driver_ms", "ooms", "fits"}
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE, "--goal", "fit:10MiB", "--budget", "0"])
    assert ended.value.code == 1
    assert "None of them fits" in capsys.readouterr().out


def test_figures_of_several_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stats", SAMPLE, str(TRACES / "streams_prefetch.default.pickle.gz"), "--json"])
    assert ended.value.code == 0
    first, second = json.loads(capsys.readouterr().out)["files"]
    assert {key: first[key] for key in first if key != "file"} == {key: second[key] for key in second if key != "file"}
    assert set(first) == {
        "file",
        "device",
        "events",
        "compat",
        "peak_requested_bytes",
        "peak_active_bytes",
        "peak_reserved_bytes",
        "waste_ratio",
        "ooms",
        "devices",
    }
    with pytest.raises(SystemExit) as ended:
        main(["stats", SAMPLE])
    assert ended.value.code == 0
    assert "sample" in capsys.readouterr().out
    with pytest.raises(SystemExit) as ended:
        main(["stats", SAMPLE, str(TRACES / "graph_train.default.pickle.gz")])
    assert ended.value.code == 0
    with pytest.raises(SystemExit) as ended:
        main(["stats", *(str(TRACES / f"graph_train.{kind}.pickle.gz") for kind in ("default", "expandable"))])
    assert ended.value.code == 0
    assert f"in {TRACES}" in capsys.readouterr().out.replace("\n", "")


def test_where_time_is_short_settings_drop_out_by_halves(recording, monkeypatch: pytest.MonkeyPatch) -> None:
    shares = []
    trial = type(recording).trial

    def watched(self, settings, capacity, share):
        shares.append(share)
        return trial(self, settings, capacity, share)

    monkeypatch.setattr(type(recording), "trial", watched)
    clock = iter(float(second) for second in range(100_000))
    monkeypatch.setattr(time, "monotonic", lambda: next(clock))
    tuned = tune(recording, Goal.parse("min-memory"), budget=400.0, settings=all_candidates(True, finely=True))
    assert {1 / 8, 1 / 4, 1 / 2, 1.0} >= set(shares) > {1.0}
    assert len(tuned.candidates) < tuned.tried
    assert tuned.best == min(tuned.candidates, key=lambda each: each.peak_reserved_bytes)


def test_there_are_a_thousand_settings_to_try_finely() -> None:
    assert len(list(all_candidates(limited=True, finely=True))) >= 1000


def test_a_setting_that_is_best_while_loading_and_another_after_are_both_named(tmp_path: Path) -> None:
    allocator = allotment.Allocator("sim:64GiB", settings="compat:2.11")
    allocator.record_history()
    mib = 1 << 20
    kept = [allocator.malloc(33 * mib) for _ in range(8)]  # 48 MiB each where sizes are rounded up
    for size in range(33, 64, 2):
        allocator.free(allocator.malloc(size * mib))  # each too large for those before it, unless rounded up
    allocator.dump_snapshot(tmp_path / "run.pickle")
    recording = read_recording(tmp_path / "run.pickle")
    tuned = tune(recording, Goal.parse("min-memory"), settings=["", "roundup_power2_divisions:2"])
    assert tuned.phases is not None
    assert (tuned.phases.loading.settings, tuned.phases.after.settings) == ("", "roundup_power2_divisions:2")
    assert tuned.phases.entry <= 2 * len(kept)
    assert tune(read_recording(SAMPLE), Goal.parse("min-memory"), settings=[""]).phases is None


@pytest.mark.parametrize(
    ("text", "code"), [("5", 0), ("5s", 0), ("1m", 0), ("", 2), ("soon", 2), ("-1", 2), ("inf", 2)]
)
def test_a_budget_is_seconds_or_a_time(text: str, code: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE, "--json", f"--budget={text}"])
    assert ended.value.code == code
    capsys.readouterr()


def test_a_device_that_cannot_be_measured_leaves_the_costs_as_they_were(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "cuda:99"])
    assert ended.value.code == 2
    assert not list(tmp_path.rglob("*.*"))
    assert read_recording(SAMPLE).replay().driver_ms > 0


def test_what_a_device_costs_is_measured_and_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLOTMENT_COSTS", str(tmp_path / "costs.json"))
    with pytest.raises(SystemExit) as ended:
        main(["calibrate", "sim:1GiB", "--rounds", "1", "--json"])
    assert ended.value.code == 0
    assert json.loads(capsys.readouterr().out)["device"] == "sim:1GiB"
    measured = json.loads((tmp_path / "costs.json").read_text())
    measured["costs"]["malloc"] = [[0, 1e6]]
    (tmp_path / "dear.json").write_text(json.dumps(measured))
    monkeypatch.setenv("ALLOTMENT_COSTS", str(tmp_path / "dear.json"))
    result = read_recording(SAMPLE).replay()
    assert result.driver_ms > 1000 * result.driver_calls["malloc"]
    (tmp_path / "dear.json").write_text("{}")
    monkeypatch.setenv("ALLOTMENT_COSTS", str(tmp_path / "none.json"))
    (tmp_path / "none.json").write_text("{}")
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE])
    assert ended.value.code == 2
    assert "none.json" in capsys.readouterr().err
