"""`allotment tune`: which settings a recorded run would have been best with."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli import ExitCode
from allotment._cli.explain import candidate_report, lines_to_paste
from allotment._cli.options import JsonOption, SnapshotArgument
from allotment._cli.progress import progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.tune.search import Tuned

MOST_ROWS = 10


def command(
    snapshot: SnapshotArgument,
    goal: Annotated[
        str, typer.Option(help='"min-memory", "balanced" (with driver time), or "fit:20GiB": a device to fit on.')
    ] = "balanced",
    budget: Annotated[float, typer.Option(min=0, help="Seconds after which no more settings are tried.")] = 60.0,
    device: Annotated[int | None, typer.Option(help="Which device's history; the longest unless given.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Try settings on a recorded run by replay, and print the line to paste.

    Exits with 1 if the goal cannot be met, with 2 if the snapshot cannot be read.
    """
    from rich.console import Console

    from allotment.lab.replay.run import read_recording
    from allotment.lab.tune.search import Goal, tune

    wanted = Goal.parse(goal)
    console = Console(highlight=False, quiet=as_json)
    with progress_line(console) as progress:
        tuned = tune(read_recording(snapshot, device, progress), wanted, budget, progress)
    if as_json:
        print(json.dumps(_report(tuned)))
    else:
        _print(console, tuned)
    raise typer.Exit(ExitCode.DONE if tuned.goal_met else ExitCode.DIFFERENT)


def _report(tuned: Tuned) -> dict[str, object]:
    return {
        "recorded": candidate_report(tuned.recorded),
        "best": candidate_report(tuned.best),
        "candidates": [candidate_report(each) for each in tuned.candidates],
        "tried": len(tuned.candidates),
        "seconds": tuned.seconds,
        "goal": tuned.goal.name,
        "goal_met": tuned.goal_met,
    }


def _print(console: Console, tuned: Tuned) -> None:
    from rich.markup import escape
    from rich.table import Table

    from allotment._viewer.terminal import exact_size

    table = Table(title=f"{len(tuned.candidates)} settings tried in {tuned.seconds:.1f} s, for {tuned.goal.name}")
    for title in ("settings", "most reserved", "driver time", "out of memory"):
        table.add_column(title, justify="left" if title == "settings" else "right")
    rows = [("as recorded", tuned.recorded), *((each.settings or "defaults", each) for each in tuned.candidates)]
    for name, each in rows[: MOST_ROWS + 1]:
        ooms = f"[red]{each.ooms}[/]" if each.ooms else "0"
        table.add_row(escape(name), exact_size(each.peak_reserved_bytes), f"{each.driver_ms:.1f} ms", ooms)
    console.print(table)
    if not tuned.goal_met:
        console.print("[bold red]None of them fits.[/]")
    elif not tuned.best.settings:
        console.print("The defaults are best.")
    else:
        for line in lines_to_paste([each.settings for each in tuned.candidates if each.fits]):
            console.print(escape(f"To paste: {line}"), soft_wrap=True)
