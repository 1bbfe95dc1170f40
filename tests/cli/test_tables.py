"""Output of commands: in a narrow terminal and in a pipe, no name and no setting is broken in two."""

from __future__ import annotations

import inspect
import io
import json
from importlib import import_module
from pathlib import Path

import pytest
from rich.console import Console

import allotment
from allotment._cli import COMMANDS, main
from allotment._cli.tables import print_rows, print_table
from allotment.lab.tune.candidates import all_candidates
from helpers.recorded_programs import prefetching

MIB = 1 << 20
LONG = "a_folder_with_a_name/" * 5 + "file.py:123"


def printed(width: int, print_it) -> list[str]:
    console = Console(file=io.StringIO(), width=width)
    print_it(console)
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    return int(ended.value.code or 0), capsys.readouterr().out


@pytest.mark.parametrize("width", [40, 60, 80, 200])
def test_a_row_is_one_line_or_a_name_above_its_figures(width: int) -> None:
    rows = [([name], ["12,345.6 MiB", "1.234"]) for name in (LONG, "short", "[bold]name[/]")]
    lines = printed(width, lambda console: print_table(console, ["file"], ["reserved", "ratio"], rows, title="Runs"))
    for (name,), figures in rows:
        place = next(number for number, line in enumerate(lines) if name in line)
        assert all(figure in lines[place] or figure in lines[place + 1] for figure in figures)
    assert all(len(line) <= width for line in lines if LONG not in line)


def test_figures_stand_under_their_headings_in_a_narrow_table() -> None:
    rows = [([LONG], ["1", "22"]), ([LONG], ["333", ""])]
    lines = printed(60, lambda console: print_table(console, [""], ["first", "second"], rows))
    headings, first, second = lines[0], lines[2], lines[4]
    end = headings.index("first") + len("first")
    assert (first[:end].split(), second[:end].split()) == (["1"], ["333"])
    assert first[end - 1] == "1" and second[end - 1] == "3" and first.endswith("22")
    assert len(first) == len(headings)


def test_texts_behind_figures_are_wrapped_at_words_in_their_column() -> None:
    text = "in 12 pieces of up to 4.0 MiB; pinned by blocks of train.py:12 step"
    lines = printed(50, lambda console: print_rows(console, [("1.0 MiB", text), ("2.0 MiB", LONG)]))
    column = lines[0].index("in 12")
    assert all(len(line) <= 50 for line in lines[:-1]) and len(lines) > 3
    assert all(line[:column].isspace() for line in lines[1:-1])
    assert " ".join(" ".join(line[column:] for line in lines[:-1]).split()) == text
    assert lines[-1].endswith(LONG)


@pytest.fixture
def runs(tmp_path: Path) -> list[Path]:
    files = []
    for number in range(2):
        allocator = allotment.Allocator("sim:8GiB", settings="compat:2.11")
        allocator.record_history(context="all", stacks="python")
        code = "kept = [allocator.malloc((2 + size % 31) << 20) for size in range(100)]"
        exec(compile(code, LONG, "exec"), {"allocator": allocator})
        files.append(tmp_path / f"rank{number}-of-a-job-with-a-name-that-is-rather-long.pickle")
        allocator.history.dump_snapshot(files[-1])
    return files


def test_stats_take_two_lines_a_file_at_80_columns(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    code, out = run(capsys, "stats", *map(str, runs))
    lines = out.splitlines()
    assert code == 0
    places = [next(i for i, line in enumerate(lines) if line.startswith(file.name)) for file in runs]
    assert places[1] - places[0] == 2
    assert all(lines[place + 1].count("MiB") == 3 and len(lines[place + 1]) <= 80 for place in places)


def test_tune_shows_settings_whole_at_80_columns(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, out = run(capsys, "tune", str(runs[0]), "--goal", "fit:7GiB")
    rows = [line for line in out.splitlines() if line[:3] in {f"{letter}  " for letter in "abcdefghij"}]
    tried = {each or "defaults" for each in all_candidates(limited=True)}
    assert len(rows) > 1 and any(len(row) > 40 for row in rows)
    assert all(row[3:] in tried for row in rows)


def test_explain_and_diff_show_settings_and_lines_whole_at_80_columns(
    runs: list[Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    assert LONG in run(capsys, "explain", str(runs[0]))[1]
    assert LONG in run(capsys, "diff", str(runs[0]), "--settings", "expandable_segments:True")[1]
    out = run(capsys, "explain", "sample")[1]
    line = next(line for line in out.splitlines() if line.endswith("expandable_segments:True") and line[:4].isspace())
    assert len(line) > 80


@pytest.mark.parametrize("settings", [(), ("--settings", "placement:dense")])
def test_a_ratio_is_that_of_the_figures_beside_it(
    settings: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / "prefetching.pickle"
    prefetching().history.dump_snapshot(file)
    rows = [line.split("│")[1:3] for line in run(capsys, "replay", str(file), *settings)[1].splitlines() if "│" in line]
    shown = {name.strip(): value.split()[0].replace(",", "") for name, value in rows}
    active = next(float(value) for name, value in shown.items() if name.startswith("most active"))
    reserved, ratio = float(shown["most reserved"]), float(shown["most reserved over most active"])
    assert ratio == pytest.approx(reserved / active, abs=0.001) and ratio >= 1
    assert float(shown["of which most requested"]) <= active


def test_the_ratio_of_stats_is_that_of_the_figures_beside_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11,placement:dense")
    allocator.record_history()
    stream = allotment.Stream(allocator)
    for _ in range(40):
        block = allocator.malloc(12 * MIB)
        allocator.device.launch(stream.handle)
        allocator.record_stream(block, stream)
        allocator.free(block)
    allocator.history.dump_snapshot(tmp_path / "dense.pickle")
    monkeypatch.setenv("COLUMNS", "200")
    out = run(capsys, "stats", str(tmp_path / "dense.pickle"))[1]
    row = next(line for line in out.splitlines() if "dense.pickle" in line)
    active, reserved, ratio = (float(cell.split()[0].replace(",", "")) for cell in row.split("│")[4:7])
    assert ratio == pytest.approx(reserved / active, abs=0.001) and ratio >= 1
    report = json.loads(run(capsys, "stats", str(tmp_path / "dense.pickle"), "--json")[1])["files"][0]
    assert report["waste_ratio"] == report["peak_reserved_bytes"] / report["recorded_peak_active_bytes"]


def test_the_curves_of_a_replay_fit_the_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "60")
    lines = run(capsys, "replay", "sample")[1].splitlines()
    active, reserved = (next(line for line in lines if line.startswith(name)) for name in ("active", "reserved"))
    assert 50 < len(active) == len(reserved) <= 60


@pytest.mark.parametrize("command", ["", *COMMANDS])
def test_help_shows_no_type_for_options_that_take_no_value(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    out = run(capsys, *command.split(), "--help")[1]
    assert "--help" in out and "bool" not in out.lower()


@pytest.mark.parametrize("command", COMMANDS)
def test_help_breaks_lines_at_the_width_of_the_terminal_and_nowhere_else(
    command: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "500")
    lines = {line.strip() for line in run(capsys, command, "--help")[1].splitlines()}
    doc = inspect.getdoc(import_module(f"allotment._cli.{command}").command)
    assert doc is not None
    assert {" ".join(paragraph.split()) for paragraph in doc.split("\n\n")} <= lines
