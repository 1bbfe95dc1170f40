"""Two runs side by side."""

from __future__ import annotations

import json
import pickle
from pathlib import Path

import pytest

import allotment
from allotment._cli import main
from allotment.errors import RequestError
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
def test_a_condition_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(RequestError, match="unknown condition"):
        Condition.parse(text)
