"""Programs that need much memory for a known reason: the first finding of `explain` names it."""

from __future__ import annotations

import json
import re
from importlib import import_module
from pathlib import Path

import pytest

from allotment._cli import main
from allotment.lab import explain, tune
from allotment.lab.explain.report import Explanation
from helpers.known_causes import (
    CAUSES,
    MIB,
    Program,
    cached_workspace,
    kept_by_closure,
    leak_of_losses,
    temporary_at_peak,
    too_large_batch,
    two_models,
)

TRACES = Path(__file__).parents[2] / "traces"


@pytest.mark.parametrize("name", CAUSES)
def test_what_explain_says_first_names_the_cause(name: str) -> None:
    program, words = CAUSES[name]
    advice = explain(program().recorded()).advice
    assert advice[0].kind == "program"
    assert all(word in advice[0].text for word in words), advice[0].text


def on_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path, program: Program, *command: str) -> str:
    file = tmp_path / "run.pickle"
    file.write_bytes(program.recorded())
    with pytest.raises(SystemExit):
        main([command[0], str(file), *command[1:]])
    return " ".join(capsys.readouterr().out.split())


def test_the_cause_is_the_first_thing_on_the_screen(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    out = on_screen(capsys, tmp_path, two_models(), "explain")
    assert out.startswith("What to change in the program 1. The same model exists twice")


def test_a_leak_is_reported_with_its_line_its_start_and_the_step_at_which_it_ran_out() -> None:
    found = explain(leak_of_losses("420MiB").recorded())
    growth = found.growth
    assert found.failure is not None and found.failure.ends_recording and growth is not None
    assert growth.bytes_per_step == 8 * MIB and growth.where == "/home/user/project/model.py:30 forward"
    assert growth.since_step <= 2 and growth.runs_out_at_step in (38, 39)
    assert f"out of memory at step {growth.runs_out_at_step}" in found.advice[0].text


def test_no_settings_are_offered_as_the_cure_of_a_leak(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = leak_of_losses("420MiB")
    found = explain(program.recorded())
    assert found.suggestions == [] and {each.kind for each in found.advice} == {"program"}
    assert tune(program.recorded(), budget=5.0).advice == []
    for command in ("explain", "tune"):
        out = on_screen(capsys, tmp_path, program, command)
        assert "To paste" not in out and "under any" in out


def test_json_has_the_keys_that_scripts_rely_on(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    report = json.loads(on_screen(capsys, tmp_path, leak_of_losses("420MiB"), "explain", "--json"))
    assert report["ends_in_failure"] is True
    assert set(report["steps"]) == {"count", "entries_each"} and report["steps"]["count"] in (38, 39)
    assert set(report["growth"]) == {"bytes_per_step", "where", "since_step", "runs_out_at_step"}
    assert all(set(each) == {"kind", "bytes", "sure"} for each in report["kinds"])
    assert sum(each["bytes"] for each in report["kinds"]) == report["peak"]["live_bytes"]
    assert all(set(each) == {"kind", "text", "gain_bytes"} for each in report["advice"])
    report = json.loads(on_screen(capsys, tmp_path, two_models(), "explain", "--json"))
    assert report["growth"] is None and {each["kind"] for each in report["advice"]} == {"program", "settings"}


def test_the_program_comes_before_settings_and_nothing_below_one_percent_is_advice() -> None:
    for program, _ in CAUSES.values():
        found = explain(program().recorded())
        kinds = [each.kind for each in found.advice]
        assert kinds == sorted(kinds, key=("program", "settings", "device").index)
        settings = [each for each in found.advice if each.kind != "device"]
        assert all(each.gain_bytes >= 0.01 * found.peak_reserved_bytes for each in settings)


def test_what_a_temporary_costs_is_what_the_peak_would_lose_without_it() -> None:
    found = explain(temporary_at_peak().recorded())
    assert found.live_peak is not None
    without = found.live_peak.live_bytes - found.advice[0].gain_bytes
    assert without == 108 * MIB + 4 and "108.0 MiB" in found.advice[0].text


def test_what_a_closure_keeps_is_found_wherever_in_the_step_it_is_replaced() -> None:
    for place in ("before the backward pass", "after it"):
        found = explain(kept_by_closure(place == "after it").recorded())
        assert "96.0 MiB of the previous step are still in use" in found.advice[0].text, place


def test_a_leak_is_not_reported_again_as_memory_of_the_previous_step() -> None:
    texts = [each.text for each in explain(leak_of_losses(ends=True).recorded()).advice]
    assert "grows by" in texts[0] and not any("previous step" in text for text in texts)


def test_settings_that_save_driver_time_but_no_memory_are_not_advice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(import_module("allotment.lab.explain.report"), "growth_of", lambda *_: None)
    found = explain(leak_of_losses(ends=True).recorded())
    assert not any(each.kind == "settings" for each in found.advice) and found.suggestions == []


def test_free_memory_of_one_kind_is_reported_once() -> None:
    text = explain(TRACES / "gpt2_fixed.default.pickle.gz").advice[0].text
    assert text.startswith("1,593.8 MiB of reserved memory are free and serve nothing, in pieces beside blocks in use,")
    assert text.count("1,593.8 MiB") == 1


def test_without_stacks_the_sentences_name_no_line() -> None:
    program = leak_of_losses()
    program.forget_stacks()
    texts = [each.text for each in explain(program.recorded()).advice]
    assert texts[0].startswith("Memory grows by 8.0 MiB a step, since step")
    assert not any("unknown" in text for text in texts)


def test_the_two_workspaces_of_any_training_are_no_finding() -> None:
    texts = [each.text for each in explain(cached_workspace(streams=2).recorded()).advice]
    assert not any("workspaces" in text for text in texts)


def test_workspaces_are_recognized_by_size_if_only_python_stacks_were_recorded() -> None:
    found = explain(cached_workspace(is_named=False).recorded())
    assert "12 workspaces" in found.advice[0].text
    assert next(each for each in found.peak.kinds if each.kind == "workspaces").sure == pytest.approx(0.6)


def test_where_nothing_fits_the_device_that_would_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    program = too_large_batch()
    found: Explanation = explain(program.recorded())
    device = found.advice[-1]
    assert device.kind == "device" and "400.0 MiB" in device.text and "may need more later" in device.text
    fits = re.search(r"Batches up to about ([\d.]+) times the usual size fit on 400", found.advice[0].text)
    assert fits is not None and explain(too_large_batch(float(fits[1])).recorded()).failure is None
    assert float(fits[1]) > 2.9
    needed = found.failure.capacity - device.gain_bytes if found.failure is not None else 0
    assert 420 * MIB < needed < 500 * MIB
    assert "The smallest sufficient device has" in on_screen(capsys, tmp_path, program, "tune", "--budget", "5")


def test_how_to_record_stacks_is_shown_if_none_exist(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    line = "torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="
    assert line not in on_screen(capsys, tmp_path, two_models(), "explain")
    with pytest.raises(SystemExit):
        main(["explain", "sample"])
    assert line in capsys.readouterr().out
