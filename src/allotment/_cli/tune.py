"""`allotment tune`: finds the best settings for a recorded run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.explain import candidate_report, growth_report
from allotment._cli.explain_screen import device_named
from allotment._cli.options import ClusterOption, DeviceOption, JsonOption, SnapshotsArgument
from allotment._cli.paste import NO_ADVICE, print_lines_to_paste
from allotment._cli.pinned_screen import print_pinned
from allotment._cli.progress import progress_line
from allotment._cli.ranks import print_errors

if TYPE_CHECKING:
    from rich.console import Console

    from allotment._cli.tables import Row
    from allotment.lab.explain.growth import Growth
    from allotment.lab.pinned import PinnedFigures
    from allotment.lab.ranks.together import TunedTogether
    from allotment.lab.tune.search import Candidate, Tuned

MOST_ROWS = 10
PLOT_WIDTH, PLOT_HEIGHT = 60, 10
WORTH_DRAWING = 1.1
"""The largest value in the plot, relative to the recorded run."""
RECORDED, OTHER = "R", "."
"""Marks of the plot; the rows of the table have letters."""


def command(
    snapshots: SnapshotsArgument,
    goal: Annotated[
        str, typer.Option(help='"min-memory", "balanced" (with driver time), or "fit:20GiB": a device to fit on.')
    ] = "balanced",
    budget: Annotated[str, typer.Option(help='How long to try settings, in seconds or as "90s" or "5m".')] = "60s",
    finely: Annotated[bool, typer.Option("--finely", help="Try values in between too, up to 1,000 settings.")] = False,
    device: DeviceOption = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Try settings on a recorded run by replay, and print the line to paste.

    Several files are the ranks of a job: settings are only as good as they are for the worst rank. Exits with 1 if the
    goal cannot be met or the recording ends in an out-of-memory, with 2 if a snapshot cannot be read.
    """
    from rich.console import Console

    from allotment.lab.pinned import pinned_figures
    from allotment.lab.ranks.files import snapshot_files
    from allotment.lab.ranks.together import tune_together
    from allotment.lab.replay.run import devices_with_history, read_recording
    from allotment.lab.tune.candidates import all_candidates
    from allotment.lab.tune.search import Goal, tune

    wanted = Goal.parse(goal)
    seconds = _seconds(budget)
    files = snapshot_files(snapshots)
    settings = list(all_candidates(wanted.capacity is not None, finely=True)) if finely else None
    console = Console(highlight=False, quiet=as_json)
    together: TunedTogether | None = None
    pinned_memory: PinnedFigures | None = None
    with progress_line(console) as progress:
        if len(files) > 1:
            together = tune_together(files, wanted, seconds, cluster, progress, device=device, settings=settings)
            tuned = together.tuned
        else:
            recording = read_recording(files[0], device, progress)
            tuned = tune(recording, wanted, seconds, progress, settings)
            pinned_memory = pinned_figures(recording.snapshot)
    failed = print_errors(together.failed) if together is not None else False
    if as_json:
        pinned = {"pinned_memory": None if pinned_memory is None else asdict(pinned_memory)} if together is None else {}
        print(json.dumps({**_report(tuned), **pinned, **(_ranks_report(together) if together is not None else {})}))
    else:
        if together is None:
            named = device_named(recording.device, devices_with_history(recording.snapshot))
            console.print(f"{named}, {recording.entries:,} events")
        _print(console, tuned)
        if together is not None:
            _print_ranks(console, together)
        else:
            print_pinned(console, pinned_memory)
        _print_line(console, tuned)
    missed = ExitCode.DONE if tuned.goal_met else ExitCode.DIFFERENT
    raise typer.Exit(ExitCode.BAD_INPUT if failed else missed)


def _seconds(text: str) -> float:
    from allotment.errors import RequestError

    number, unit = (text[:-1], text[-1]) if text[-1:] in ("s", "m", "h") else (text, "s")
    try:
        seconds = float(number) * {"s": 1, "m": 60, "h": 3600}[unit]
        if 0 <= seconds < float("inf"):
            return seconds
    except ValueError:
        pass
    raise RequestError(f"unknown time {text!r}; give seconds, or a number with s, m or h, such as 90s")


def _report(tuned: Tuned) -> dict[str, Any]:
    phases = tuned.phases
    return {
        "recorded": candidate_report(tuned.recorded),
        "best": candidate_report(tuned.best),
        "candidates": [candidate_report(each) for each in tuned.candidates],
        "tried": tuned.tried,
        "seconds": tuned.seconds,
        "goal": tuned.goal.name,
        "goal_met": tuned.goal_met,
        "ends_in_failure": tuned.ends_in_failure,
        "worth_changing": bool(tuned.advice),
        "growth": None if tuned.growth is None else growth_report(tuned.growth),
        "phases": None
        if phases is None
        else {
            "entry": phases.entry,
            "loading": candidate_report(phases.loading),
            "after": candidate_report(phases.after),
        },
    }


def _ranks_report(together: TunedTogether) -> dict[str, Any]:
    return {"deciding": together.deciding, "ranks": [asdict(rank) for rank in together.ranks]}


# --- for people --------------------------------------------------------------------------------------------------


def _print(console: Console, tuned: Tuned) -> None:
    from rich.markup import escape
    from rich.text import Text

    from allotment._cli.tables import print_table
    from allotment._texts import exact_size
    from allotment._viewer.terminal import scatter
    from allotment.lab.replay.driver_costs import costs_device

    marks = [RECORDED, *(chr(ord("a") + place) for place in range(MOST_ROWS))]
    rows = [("as recorded", tuned.recorded), *((each.settings or "defaults", each) for each in _different(tuned))]
    waits = any(each.waits for _, each in rows[: len(marks)])
    shown: list[Row] = [
        (
            [mark, name],
            [
                exact_size(each.peak_reserved_bytes),
                f"{each.driver_ms:.1f} ms",
                *([f"{each.waits:,}"] if waits else []),
                Text(str(each.ooms), style="red" if each.ooms else ""),
            ],
        )
        for mark, (name, each) in zip(marks, rows, strict=False)
    ]
    title = f"{tuned.tried} settings tried in {tuned.seconds:.1f} s, for {tuned.goal.name}"
    if tuned.goal.capacity is not None:
        title += ", on a device of that size"
    elif tuned.failure is not None:
        title += f", on a device of {exact_size(tuned.failure.capacity)} as when the run failed"
    figures = ["most reserved", "driver time", *(["waits"] if waits else []), "out of memory"]
    print_table(console, ["", "settings"], figures, shown, title=title)
    if waits:
        console.print("Waits: how often a stream waits for another one, on the device, before it reuses its memory.")
    # Without the worst ones, which would compress the others into one spot.
    points = [
        (each.driver_ms, float(each.peak_reserved_bytes), marks[place] if place < len(marks) else OTHER)
        for place, (_, each) in enumerate(rows)
        if place < len(marks) or each.peak_reserved_bytes <= WORTH_DRAWING * tuned.recorded.peak_reserved_bytes
    ]
    console.print(f"Most reserved (up) against driver time (right), by the costs of {escape(costs_device())}:")
    for line in scatter(
        points, PLOT_WIDTH, PLOT_HEIGHT, lambda ms: f"{ms:.1f} ms", lambda size: exact_size(round(size))
    ):
        console.print(escape(line), soft_wrap=True)
    if tuned.phases is not None:
        _print_phases(console, tuned)


def _different(tuned: Tuned) -> list[Candidate]:
    """Return the candidates; of those with equal results, only the simplest."""
    found: dict[tuple[int, float, int], Candidate] = {}
    for each in tuned.candidates:
        same = (each.peak_reserved_bytes, each.driver_ms, each.ooms)
        if same not in found or len(each.settings) < len(found[same].settings):
            found[same] = each
    return list(found.values())


def _print_phases(console: Console, tuned: Tuned) -> None:
    from rich.markup import escape

    from allotment._texts import exact_size

    phases = tuned.phases
    assert phases is not None
    for when, each in ((f"up to entry {phases.entry:,}, while it loads", phases.loading), ("after that", phases.after)):
        console.print(
            escape(f"Best {when}: {each.settings or 'defaults'}, {exact_size(each.peak_reserved_bytes)}"),
            soft_wrap=True,
        )


def _print_ranks(console: Console, together: TunedTogether) -> None:
    from rich.markup import escape

    from allotment._texts import exact_size

    best = together.tuned.best
    worst = max(together.ranks, key=lambda rank: (rank.ooms, rank.peak_reserved_bytes))
    console.print(
        escape(
            f"{len(together.ranks)} ranks: {together.deciding} decides as recorded; under {best.settings or 'defaults'}"
            f" {worst.file} does, with {exact_size(worst.peak_reserved_bytes)}."
        ),
        soft_wrap=True,
    )


def _print_line(console: Console, tuned: Tuned) -> None:
    if tuned.ends_in_failure:
        _print_end(console, tuned)
    if tuned.growth is not None:
        _print_growth(console, tuned.growth)
    elif not tuned.best.fits:
        _print_none_fits(console, tuned)
    elif not tuned.advice:
        console.print(f"Keep the settings that it was recorded with: none of the others {NO_ADVICE}")
    else:
        print_lines_to_paste(console, tuned.advice, tuned.recorded)


def _print_end(console: Console, tuned: Tuned) -> None:
    """Say that the recording ends out of memory, and what that means for the settings tried."""
    from allotment._texts import exact_size

    failure = tuned.failure
    assert failure is not None
    others = "" if failure.count == 1 else f", the first of {failure.count:,} that failed"
    console.print(
        f"[bold red]The recording ends in an out-of-memory[/], at entry {failure.entry:,}: a request for"
        f" {exact_size(failure.size)}{others}. Nothing beyond it was tried: settings that serve it may run out later."
    )


def _print_growth(console: Console, growth: Growth) -> None:
    """Say that memory grows with every step, which no settings prevent."""
    from rich.markup import escape

    from allotment._texts import exact_size

    console.print(
        f"[bold red]Memory grows by {exact_size(growth.bytes_per_step)} a step[/] at {escape(growth.where)}, since step"
        f" {growth.since_step:,}: it runs out under any settings. `allotment explain` says more about it."
    )


def _print_none_fits(console: Console, tuned: Tuned) -> None:
    """Say that nothing fits, and what would."""
    from rich.markup import escape

    from allotment._texts import exact_size

    console.print("[bold red]None of them fits.[/]")
    roomy = tuned.roomy
    if roomy is not None:
        console.print(
            escape(
                f"The smallest sufficient device has {exact_size(roomy.peak_reserved_bytes)}, under"
                f" {roomy.settings or 'the default settings'}."
            )
        )
