"""Two runs side by side."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import allotment
from allotment._cli import main
from allotment.errors import RequestError
from allotment.lab import diff
from allotment.lab.explain.difference import Condition

MIB = 1 << 20


@pytest.fixture
def runs(tmp_path: Path) -> list[str]:
    """The same program twice, with 14 and with 18 MiB from one of its lines."""
    files = []
    for name, size in (("a", 14), ("b", 18)):
        allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11")
        allocator.record_history(context="all", stacks="python")
        kept = allocator.malloc(12 * MIB)
        grown = allocator.malloc(size * MIB)
        path = tmp_path / f"{name}.pickle"
        path.write_bytes(pickle.dumps(allocator.snapshot()))
        files.append(str(path))
        allocator.free(kept)
        allocator.free(grown)
    return files


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(["diff", *arguments])
    return int(ended.value.code or 0), capsys.readouterr().out


def test_the_line_that_grew_is_named_first(capsys: pytest.CaptureFixture[str], runs: list[str]) -> None:
    code, out = run(capsys, *runs, "--json")
    report = json.loads(out)
    assert code == 0
    first, second = report["lines"]
    assert (first["a_bytes"], first["b_bytes"]) == (14 * MIB, 18 * MIB)
    assert (second["a_bytes"], second["b_bytes"]) == (12 * MIB, 12 * MIB)
    assert report["ratios"]["peak_live"] == pytest.approx(30 / 26)
    assert set(report["ratios"]) == {"peak_reserved", "peak_live", "waste"}


def test_two_settings_of_one_run_are_compared_by_line(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11")
    allocator.record_history(context="all", stacks="python")
    blocks = [allocator.malloc(2 * MIB) for _ in range(10)]
    kept = blocks.pop(0)
    for block in blocks:
        allocator.free(block)
    allocator.malloc(30 * MIB)  # too large for what is left of the segment
    path = tmp_path / "run.pickle"
    path.write_bytes(pickle.dumps(allocator.snapshot()))
    allocator.free(kept)
    code, out = run(capsys, str(path), "--settings", "expandable_segments:True", "--json")
    report = json.loads(out)
    assert code == 0
    assert report["ratios"]["peak_live"] == 1.0 and report["ratios"]["peak_reserved"] < 1
    pinning = next(line for line in report["lines"] if line["a_bytes"] == 2 * MIB)
    assert (pinning["a_pinned_bytes"], pinning["b_pinned_bytes"]) == (18 * MIB, 0)
    assert report["waste"]["pieces"] == {"a_bytes": 18 * MIB, "b_bytes": 8 * MIB}
    code, out = run(capsys, str(path), "--settings", "expandable_segments:True", "--settings", "", "--json")
    assert json.loads(out)["ratios"]["peak_reserved"] == pytest.approx(1 / report["ratios"]["peak_reserved"])
    code, out = run(capsys, str(path), "--settings", "expandable_segments:True")
    assert code == 0 and "pin when most is reserved" in out and "18.0 MiB" in out


def test_settings_do_not_change_what_a_run_has_in_use() -> None:
    found = diff("sample", b_settings="expandable_segments:True")
    assert found.ratios["peak_live"] == 1.0  # though most is reserved at another moment
    assert all(line.a_bytes == line.b_bytes for line in found.lines)


def test_two_files_can_be_compared_under_settings(capsys: pytest.CaptureFixture[str], runs: list[str]) -> None:
    plain = json.loads(run(capsys, *runs, "--json")[1])
    under = json.loads(run(capsys, *runs, "--settings", "roundup_power2_divisions:2", "--json")[1])
    assert plain["ratios"]["peak_live"] == under["ratios"]["peak_live"]
    assert plain["waste"]["rounding"]["a_bytes"] == 0 < under["waste"]["rounding"]["a_bytes"]


@pytest.mark.parametrize(
    "arguments", [[], ["--settings", "no:such"], ["--settings", "", "--settings", "", "--settings", ""]]
)
def test_what_cannot_be_compared_is_refused(
    capsys: pytest.CaptureFixture[str], runs: list[str], arguments: list[str]
) -> None:
    assert run(capsys, runs[0], *arguments)[0] == 2


def test_a_run_is_equal_to_itself(capsys: pytest.CaptureFixture[str], runs: list[str]) -> None:
    report = json.loads(run(capsys, runs[0], runs[0], "--json")[1])
    assert set(report["ratios"].values()) <= {1.0, None}


@pytest.mark.parametrize(
    ("condition", "code"),
    [("peak_live > 1.05", 1), ("peak_live > 1.5", 0), ("peak_live<=2", 1), ("peak_live >= 2", 0), ("waste < 0", 0)],
)
def test_a_condition_that_holds_fails_the_command(
    capsys: pytest.CaptureFixture[str], runs: list[str], condition: str, code: int
) -> None:
    assert run(capsys, *runs, "--fail-if", condition)[0] == code


@pytest.mark.parametrize("text", ["", "peak_live", "peak_live > x", "peak_live > 1.2.3", "speed > 1", "peak_live == 1"])
def test_an_invalid_condition_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="unknown condition"):
        Condition.parse(text)
