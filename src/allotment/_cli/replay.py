"""`allotment replay`: runs the history of a PyTorch memory snapshot through the engine."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.options import JsonOption, SnapshotArgument
from allotment._cli.pinned_screen import print_pinned
from allotment._cli.progress import is_ascii, progress_line
from allotment._cli.tables import ratio_shown

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.pinned import PinnedFigures
    from allotment.lab.replay.result import Result
    from allotment.lab.replay.run import Progress

HOW_KNOWN = {
    "given": "given",
    "field": "named in the snapshot",
    "marks": "by the snapshot's form",
    "reproduced": "the newest one that reproduces the recorded decisions",
    "assumed": "assumed: nothing in the snapshot shows it",
}
NAME, LINE = 10, 64
"""Characters of a sparkline's name, and most characters of the line."""


def command(
    snapshot: SnapshotArgument,
    settings: Annotated[
        str | None,
        typer.Option(help='Other settings than the recorded ones, such as "expandable_segments:True".'),
    ] = None,
    capacity: Annotated[str | None, typer.Option(help='A device of this size, such as "40GiB".')] = None,
    fit: Annotated[bool, typer.Option("--fit", help="Find the smallest device that the history fits on.")] = False,
    device: Annotated[int | None, typer.Option(help="The device; by default the one with the longest history.")] = None,
    compat: Annotated[
        str | None,
        typer.Option(help='The PyTorch whose rules decide, such as "2.15"; found in the snapshot unless given.'),
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Run a PyTorch memory snapshot's history through the engine, on a simulated device.

    Exits with 1 if a replay as recorded differs from the recording, or if it ran out of memory on the given capacity;
    with 2 if the snapshot cannot be read.
    """
    if as_json:
        result, smallest, pinned = _replay(snapshot, settings, capacity, fit, device, compat, lambda what: None)
        print(json.dumps(_report(result, smallest, fit, pinned)))
    else:
        result, smallest = _print_report(snapshot, settings, capacity, fit, device, compat)
    missed = result.matches_recording is False or (capacity is not None and result.ooms > 0)
    raise typer.Exit(ExitCode.DIFFERENT if missed else ExitCode.DONE)


def _replay(
    snapshot: str,
    settings: str | None,
    capacity: str | None,
    fit: bool,
    device: int | None,
    compat: str | None,
    progress: Progress,
) -> tuple[Result, int | None, PinnedFigures | None]:
    from dataclasses import replace

    from allotment._settings import Settings
    from allotment.lab.pinned import pinned_figures
    from allotment.lab.replay.run import read_capacity, read_recording

    if settings is not None:
        Settings.parse(settings)  # report bad arguments before a long read
    if compat is not None:
        compat = Settings.parse(f"compat:{compat}").compat
    size = None if capacity is None else read_capacity(capacity)
    recording = read_recording(snapshot, device, progress, compat)
    wanted = None if settings is None else Settings.parse(settings, compat=compat or recording.compat)
    if wanted is None and compat is not None:
        wanted = replace(recording.settings, compat=compat)
    progress("replaying")
    result = recording.replay(wanted, size)
    smallest = recording.fit(wanted, progress) if fit else None
    return result, smallest, pinned_figures(recording.snapshot)


def _report(result: Result, smallest: int | None, fit: bool, pinned: PinnedFigures | None) -> dict[str, Any]:
    difference = result.first_difference
    report: dict[str, Any] = {
        "events": result.events,
        "compat": result.compat,
        "compat_source": result.compat_source,
        "peak_requested_bytes": result.peak_requested_bytes,
        "peak_allocated_bytes": result.peak_allocated_bytes,
        "peak_active_bytes": result.peak_active_bytes,
        "peak_reserved_bytes": result.peak_reserved_bytes,
        "recorded_peak_active_bytes": result.recorded_peak_active_bytes,
        "waste_ratio": result.waste_ratio,
        "placement": result.placement,
        "device_allocations": result.device_allocations,
        "device_frees": result.device_frees,
        "retries": result.retries,
        "ooms": result.ooms,
        "driver_calls": result.driver_calls,
        "driver_ms": result.driver_ms,
        "calls_last_quarter": result.calls_last_quarter,
        "waits": result.waits,
        "chunks": result.chunks,
        "views": result.views,
        "matches_recording": result.matches_recording,
        "reason": result.reason,
        "first_difference": None if difference is None else asdict(difference),
    }
    if fit:
        report["smallest_capacity_bytes"] = smallest
    return {**report, "pinned_memory": None if pinned is None else asdict(pinned), "seconds": result.seconds}


# --- for people --------------------------------------------------------------------------------------------------


def _print_report(
    snapshot: str, settings: str | None, capacity: str | None, fit: bool, device: int | None, compat: str | None
) -> tuple[Result, int | None]:
    from rich.console import Console
    from rich.markup import escape

    console = Console(highlight=False)
    with progress_line(console) as progress:
        result, smallest, pinned = _replay(snapshot, settings, capacity, fit, device, compat, progress)
    _print_table(console, result, smallest)
    _print_lines(console, result)
    _print_verdict(console, result)
    print_pinned(console, pinned)
    console.print(f"Why it needs that much: [bold]allotment explain {escape(snapshot)}[/]", highlight=False)
    return result, smallest


def _print_table(console: Console, result: Result, smallest: int | None) -> None:
    from rich.table import Table

    from allotment._texts import exact_size

    title = f"Device {result.device}: {result.events:,} events replayed in {result.seconds * 1000:.1f} ms"
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value", justify="right")
    for name, size in (
        ("most allocated", result.peak_allocated_bytes),
        ("most active: allocated, or freed and waiting", result.peak_active_bytes),
        ("  of which most requested", result.peak_requested_bytes),
        ("most reserved", result.peak_reserved_bytes),
    ):
        table.add_row(name, exact_size(size))
    table.add_row("rules of PyTorch", f"{result.compat} ({HOW_KNOWN[result.compat_source]})")
    table.add_row("most reserved over most active", ratio_shown(result.peak_reserved_bytes, result.peak_active_bytes))
    table.add_row("driver time", f"{result.driver_ms:.1f} ms")
    table.add_row("device allocations, frees", f"{result.device_allocations:,}, {result.device_frees:,}")
    table.add_row("retries, out of memory", f"{result.retries:,}, {result.ooms:,}")
    if smallest is not None:
        table.add_row("smallest device it fits on", exact_size(smallest))
    console.print(table)


def _print_lines(console: Console, result: Result) -> None:
    from allotment._viewer.terminal import plain_if, sparkline

    top = max(result.reserved, default=0)
    width = min(LINE, console.width - NAME)
    for name, sizes in (("active", result.live), ("reserved", result.reserved)):
        console.print(f"{name:{NAME}}{plain_if(is_ascii(console), sparkline(sizes, width, top))}", markup=False)


def _print_verdict(console: Console, result: Result) -> None:
    from rich.markup import escape

    difference = result.first_difference
    if result.matches_recording:
        console.print("[green]Every recorded decision was made again.[/]")
    elif result.matches_recording is False and difference is not None:
        place = "The state at the end" if difference.entry is None else f"Entry {difference.entry}"
        console.print(f"[bold red]{place} differs from the recording:[/]")
        console.print(escape(f"  expected {difference.expected}\n  got      {difference.got}"))
    if result.reason is not None:
        style = "" if result.matches_recording else "yellow"
        console.print(escape(result.reason[0].upper() + result.reason[1:] + "."), style=style)
