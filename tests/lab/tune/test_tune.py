"""Trying settings on recorded runs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from allotment._cli import main
from allotment._settings import Settings
from allotment.errors import RequestError
from allotment.lab.replay.run import SAMPLE, read_recording
from allotment.lab.tune.candidates import FEW, all_candidates
from allotment.lab.tune.search import Goal, try_settings, tune

TRACES = Path(__file__).parents[2] / "traces"


@pytest.fixture(scope="module")
def recording():
    return read_recording(SAMPLE)


@pytest.mark.parametrize("limited", [False, True])
def test_every_candidate_is_valid_and_stands_once(limited: bool) -> None:
    candidates = list(all_candidates(limited))
    assert len(set(candidates)) == len(candidates)
    for text in candidates:
        Settings.parse(text)


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


@pytest.mark.parametrize("text", ["", "fit", "fit:", "fit:nothing", "fit:0", "fit:80", "fit:9999PiB", "fast"])
def test_an_unknown_goal_is_refused(text: str) -> None:
    with pytest.raises(RequestError):
        Goal.parse(text)


def test_the_command_has_the_promised_keys_and_exit_codes(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE, "--json", "--budget", "0"])
    report = json.loads(capsys.readouterr().out)
    assert ended.value.code == 0
    assert set(report) == {"recorded", "best", "candidates", "tried", "seconds", "goal", "goal_met"}
    assert set(report["best"]) == {"settings", "peak_reserved_bytes", "driver_ms", "ooms", "fits"}
    with pytest.raises(SystemExit) as ended:
        main(["tune", SAMPLE, "--goal", "fit:10MiB", "--budget", "0"])
    assert ended.value.code == 1
    assert "None of them fits" in capsys.readouterr().out


def test_figures_of_several_files(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["stats", SAMPLE, str(TRACES / "graph_train.default.pickle.gz"), "--json"])
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
    }
    with pytest.raises(SystemExit) as ended:
        main(["stats", SAMPLE])
    assert ended.value.code == 0
    assert "sample" in capsys.readouterr().out
