"""`allotment diff`: compares two recorded runs, or two settings of one run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.explain_screen import CAUSES, device_named
from allotment._cli.options import DeviceOption, JsonOption
from allotment._cli.progress import progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.explain.difference import Comparison
    from allotment.lab.explain.report import AtPeak

MOST_LINES = 20
MOST_PINNING = 8


def command(
    a: Annotated[str, typer.Argument(metavar="A", help="A snapshot.", show_default=False)],
    b: Annotated[
        str | None,
        typer.Argument(
            metavar="B", help="The snapshot to compare with A; without it, A under other settings.", show_default=False
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            help="Settings to replay under: for one file, those of B, with A as recorded; given twice, A's and B's;"
            " given once for two files, those of both."
        ),
    ] = None,
    fail_if: Annotated[
        list[str] | None,
        typer.Option(help='Exit with 1 if this holds of B over A, such as "peak_reserved > 1.05"; may be repeated.'),
    ] = None,
    device: DeviceOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what grew from one run to the other, or between two settings, by line of code.

    Exits with 1 if a condition of --fail-if holds, with 2 if a snapshot cannot be read.
    """
    from rich.console import Console

    from allotment.lab.explain.difference import Condition, compare

    conditions = [Condition.parse(text) for text in fail_if or ()]
    of_a, of_b = _chosen(b, settings or [])
    console = Console(highlight=False, quiet=as_json)
    with progress_line(console) as progress:
        peaks = _peaks(a, b, of_a, of_b, device, progress)
    found = compare(*peaks)
    if as_json:
        print(json.dumps(_report(found)))
    else:
        _print(console, found, _named("A", a, of_a, peaks[0]), _named("B", b or a, of_b, peaks[1]))
    failed = [condition for condition in conditions if condition.holds(found)]
    for condition in failed:
        console.print(f"[bold red]{condition.ratio} {condition.relation} {condition.bound:g}[/]")
    raise typer.Exit(ExitCode.DIFFERENT if failed else ExitCode.DONE)


def _chosen(b: str | None, settings: list[str]) -> tuple[str | None, str | None]:
    """Return the settings of A and of B; None means the recorded ones. Raises RequestError, SettingsError."""
    from allotment._settings import Settings
    from allotment.errors import RequestError

    for text in settings:
        Settings.parse(text)  # report bad arguments before a long read
    if len(settings) > 2:
        raise RequestError(f"{len(settings)} times --settings: give it once or twice, for A and for B")
    if b is None and not settings:
        raise RequestError("one file and nothing to compare it with; add another file, or --settings")
    if len(settings) == 2:
        return settings[0], settings[1]
    both = settings[0] if settings else None
    return (both if b is not None else None), both


def _peaks(
    a: str, b: str | None, of_a: str | None, of_b: str | None, device: int | None, progress: Any
) -> tuple[AtPeak, AtPeak]:
    from allotment.lab.api import peak_of
    from allotment.lab.explain.report import at_peak
    from allotment.lab.replay.run import read_recording

    if b is None:
        recording = read_recording(a, device, progress)
        progress("replaying")
        return at_peak(recording, of_a), at_peak(recording, of_b)
    progress(f"reading {a}")
    first = peak_of(a, of_a, device)
    progress(f"reading {b}")
    return first, peak_of(b, of_b, device)


def _report(found: Comparison) -> dict[str, Any]:
    return {
        "lines": [asdict(line) for line in found.lines],
        "kinds": [asdict(each) for each in found.kinds],
        "ratios": found.ratios,
        "waste": {cause: {"a_bytes": a, "b_bytes": b} for cause, (a, b) in found.waste.items()},
    }


# --- for people --------------------------------------------------------------------------------------------------


def _named(letter: str, file: str, settings: str | None, at: AtPeak) -> str:
    from allotment._texts import exact_size, printable

    under = "as recorded" if settings is None else f"under {settings or 'defaults'}"
    device = f", {device_named(at.device, at.devices)}" if len(at.devices) > 1 else ""
    return f"{letter}: {printable(file)}{device}, {under}: {exact_size(at.peak_reserved_bytes)} reserved at most"


def _print(console: Console, found: Comparison, *titles: str) -> None:
    from rich.markup import escape

    for title in titles:
        console.print(escape(title), soft_wrap=True)
    rows = [(line.where, line.a_bytes, line.b_bytes) for line in found.lines[:MOST_LINES]]
    _print_table(console, "Held when most is in use, by line", "line", rows)
    if any(each.kind != "unknown" for each in found.kinds):
        rows = [(each.kind, each.a_bytes, each.b_bytes) for each in found.kinds]
        _print_table(console, "Held when most is in use, by kind of memory", "kind", rows)
    pinned = found.fragmentation[:MOST_PINNING]
    if pinned:
        rows = [(line.where, line.a_pinned_bytes, line.b_pinned_bytes) for line in pinned]
        _print_table(console, "Free memory that its blocks pin when most is reserved, by line", "line", rows)
    rows = [(CAUSES.get(cause, cause), a, b) for cause, (a, b) in found.waste.items() if a or b]
    _print_table(console, "Reserved and not in use", "cause", rows)
    for name, ratio in found.ratios.items():
        console.print(f"{name}: B is {'-' if ratio is None else f'{ratio:.3f}'} of A")


def _print_table(console: Console, title: str, first: str, rows: list[tuple[str, int, int]]) -> None:
    from allotment._cli.tables import print_table
    from allotment._texts import exact_size, signed_size

    shown = [([name], [exact_size(a), exact_size(b), signed_size(b - a) if a != b else "0 B"]) for name, a, b in rows]
    print_table(console, [first], ["A", "B", "B - A"], shown, title=title)
