"""`allotment conformance`: compares the engine with recorded ground truth, one line for each file."""

from __future__ import annotations

import json
import time
from collections import Counter
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli import ExitCode
from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rich.text import Text

    from allotment.lab.conformance.run import Result

EXIT_CODES = {
    "equal": ExitCode.DONE,
    "different": ExitCode.DIFFERENT,
    "bad": ExitCode.BAD_INPUT,
    "not_yet": ExitCode.NOT_YET,
}
STYLES = {"equal": "green", "different": "bold red", "bad": "bold magenta", "not_yet": "yellow"}


def command(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Recordings (.json.gz).", show_default=False)],
    as_json: JsonOption = False,
    check: Annotated[bool, typer.Option("--check", help="Check the engine's invariants after every call.")] = False,
) -> None:
    """Replay recorded ground truth and compare every decision.

    Exits with 0 if all files are equal, 1 if one differs, 2 if one cannot be read, 3 if one needs something that the
    engine does not support yet.
    """
    if as_json:
        results = list(_results(files, check))
        print(json.dumps(_report(results)))
    else:
        results = _print_lines(files, check)
    raise typer.Exit(ExitCode.of_all([EXIT_CODES[result.status] for result in results]))


def _results(files: list[Path], check: bool) -> Iterator[Result]:
    from allotment.lab.conformance.run import check_file

    for file in files:
        yield check_file(file, check_invariants=check)


def _report(results: list[Result]) -> dict[str, object]:
    counts = Counter(result.status for result in results)
    return {
        "files": [asdict(result) for result in results],
        "equal": counts["equal"],
        "different": counts["different"],
        "not_yet": counts["not_yet"],
        "bad": counts["bad"],
    }


def _print_lines(files: list[Path], check: bool) -> list[Result]:
    from rich.console import Console
    from rich.progress import Progress

    console = Console(soft_wrap=True, highlight=False)
    results: list[Result] = []
    started = time.monotonic()
    progress = Progress(console=console, transient=True, disable=not console.is_terminal)
    task = progress.add_task("Replaying", total=len(files))
    try:
        for result in _results(files, check):
            results.append(result)
            console.print(_line(result))
            progress.update(task, completed=len(results))
            if time.monotonic() - started > 1:
                progress.start()
    finally:
        progress.stop()
    counts = Counter(result.status for result in results)
    counted = [f"{count} {status.replace('_', ' ')}" for status, count in counts.items()]
    console.print(f"{len(results)} file{'s' if len(results) != 1 else ''}: {', '.join(counted)}")
    return results


def _line(result: Result) -> Text:
    from rich.text import Text

    line = Text()
    line.append(f"{result.status.replace('_', ' '):10}", style=STYLES[result.status])
    line.append(_printable(result.file))
    detail = _detail(result)
    if detail:
        line.append(f": {_printable(detail)}")
    return line


def _detail(result: Result) -> str:
    if result.status == "different":
        return f"{_place(result)}{result.what}: expected {result.expected}, got {result.got}"
    if result.status == "equal" and result.order_dependent:
        first, *others = result.order_dependent
        more = f" and {len(others)} more" if others else ""
        return f"apart from what depends on an undefined order ({first}{more})"
    return result.what


def _place(result: Result) -> str:
    op = "at the end" if result.op is None else f"op {result.op}"
    return f"{op}: " if result.trace_index is None else f"{op}, trace {result.trace_index}: "


def _printable(text: str) -> str:
    """Return the text on one line, without terminal control characters."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
