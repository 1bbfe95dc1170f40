"""`allotment explain`: why a run needed its memory, or ran out of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.explain_screen import print_explanation
from allotment._cli.options import ClusterOption, DeviceOption, JsonOption, SnapshotsArgument
from allotment._cli.progress import progress_line
from allotment._cli.ranks import decided, print_errors, print_ranks

if TYPE_CHECKING:
    from allotment.lab.explain.growth import Growth
    from allotment.lab.explain.report import Explanation
    from allotment.lab.explain.study import Study
    from allotment.lab.ranks.figures import Figures
    from allotment.lab.tune.search import Candidate


def command(
    snapshots: SnapshotsArgument,
    device: DeviceOption = None,
    compat: Annotated[
        str | None,
        typer.Option(help='The PyTorch that wrote it, such as "2.15"; found in the snapshot unless given.'),
    ] = None,
    flame: Annotated[
        Path | None,
        typer.Option(metavar="FILE.html", help="Write a flame graph of memory by stack, a page that needs no network."),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Explain why a run needed its memory: which request failed, which code holds it, what is wasted, what would help.

    Of several files, the ranks of a job, it explains the one that ran out of memory or needs most. Exits with 2 if a
    snapshot cannot be read.
    """
    from rich.console import Console
    from rich.markup import escape

    from allotment.lab.api import explain_file
    from allotment.lab.ranks.files import snapshot_files

    files = snapshot_files(snapshots)
    console = Console(highlight=False, quiet=as_json)
    rows: list[Figures] = []
    failed = False
    with progress_line(console) as progress:
        snapshot = files[0]
        if len(files) > 1:
            snapshot, rows, done = decided(files, device, cluster, progress)
            failed = print_errors(done)
        found, study = explain_file(snapshot, device, compat, progress)
        if flame is not None:
            progress("drawing the flame graph")
            _draw_flame_graph(flame, study, f"{snapshot}, device {found.device}")
    if as_json:
        ranks = {"file": snapshot, "ranks": [asdict(row) for row in rows]} if rows else {}
        print(json.dumps({**_report(found), **ranks}))
        raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)
    if rows:
        print_ranks(console, rows, snapshot)
    print_explanation(console, found)
    if flame is not None:
        console.print(f"The flame graph is in {escape(str(flame))}.", soft_wrap=True)
    raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)


def _draw_flame_graph(file: Path, study: Study | None, title: str) -> None:
    from allotment._viewer.flame_page import flame_page
    from allotment.errors import RequestError
    from allotment.lab.explain.flame import flame_of

    if study is None:
        raise RequestError("a flame graph needs a history, and the snapshot has none")
    file.write_bytes(flame_page(flame_of(study), title))


def _report(found: Explanation) -> dict[str, Any]:
    failure, bounds, steps, growth = found.failure, found.bounds, found.steps, found.growth
    return {
        "device": found.device,
        "devices": found.devices,
        "compat": found.compat,
        "matches_recording": found.matches_recording,
        "failure": None
        if failure is None
        else {
            "entry": failure.entry,
            "size": failure.size,
            "stream": failure.stream,
            "pool": list(failure.pool),
            "frames": failure.frames,
            "free": [asdict(each) for each in failure.free],
            "count": failure.count,
            "capacity_bytes": failure.capacity,
        },
        "ends_in_failure": failure is not None and failure.ends_recording,
        "peak_reserved_bytes": found.peak_reserved_bytes,
        "peak": asdict(found.peak),
        "live_peak": None if found.live_peak is None else asdict(found.live_peak),
        "waste": {**asdict(found.waste), "total": found.waste.total},
        "bounds": None if bounds is None else asdict(bounds),
        "driver_ms": found.driver_ms,
        "suggestions": [candidate_report(each) for each in found.suggestions],
        "steps": None if steps is None else {"count": steps.count, "entries_each": steps.entries_each},
        "growth": None if growth is None else growth_report(growth),
        "kinds": [asdict(each) for each in found.peak.kinds],
        "advice": [asdict(each) for each in found.advice],
        "pinned_memory": None if found.pinned is None else asdict(found.pinned),
        "process": found.process,
    }


def growth_report(growth: Growth) -> dict[str, Any]:
    """Return what grows, for JSON."""
    return {
        "bytes_per_step": growth.bytes_per_step,
        "where": growth.where,
        "since_step": growth.since_step,
        "runs_out_at_step": growth.runs_out_at_step,
    }


def candidate_report(candidate: Candidate) -> dict[str, Any]:
    """Return a candidate, for JSON."""
    return {**asdict(candidate), "fits": candidate.fits}
