"""`allotment explain`: why a run needed the memory that it did, or ran out of it."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.explain_screen import print_explanation
from allotment._cli.options import ClusterOption, DeviceOption, JsonOption, SnapshotsArgument
from allotment._cli.progress import progress_line
from allotment._cli.ranks import decided, print_errors, print_ranks

if TYPE_CHECKING:
    from collections.abc import Callable

    from allotment.lab.explain.report import Explanation
    from allotment.lab.ranks.figures import Figures
    from allotment.lab.tune.search import Candidate


def command(
    snapshots: SnapshotsArgument,
    device: DeviceOption = None,
    compat: Annotated[
        str | None,
        typer.Option(help='The PyTorch that wrote it, such as "2.15"; found in the snapshot unless given.'),
    ] = None,
    cluster: ClusterOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a run needed the memory that it did: which request failed, who holds it, what is wasted, what would help.

    Of several files, the ranks of a job, the one is explained that ran out of memory or needs most of it. Exits with 2
    if a snapshot cannot be read.
    """
    from rich.console import Console

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
        found = explained(snapshot, device, compat, progress)
    if as_json:
        ranks = {"file": snapshot, "ranks": [asdict(row) for row in rows]} if rows else {}
        print(json.dumps({**_report(found), **ranks}))
        raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)
    if rows:
        print_ranks(console, rows, snapshot)
    print_explanation(console, found)
    raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)


def explained(snapshot: str, device: int | None, compat: str | None, progress: Callable[[str], None]) -> Explanation:
    """What can be said of a snapshot, with or without a history."""
    from allotment._formats.torch_snapshot import naming
    from allotment._settings import Settings
    from allotment.lab.explain.report import explain, explain_end
    from allotment.lab.replay.run import has_history, read_source, recording_of

    if compat is not None:
        compat = Settings.parse(f"compat:{compat}").compat
    progress("reading")
    read = read_source(snapshot)
    with naming(snapshot):
        if not has_history(read):
            return explain_end(read, device)
        return explain(recording_of(read, device, progress, compat), progress)


def _report(found: Explanation) -> dict[str, Any]:
    failure, bounds = found.failure, found.bounds
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
        "peak": asdict(found.peak),
        "live_peak": None if found.live_peak is None else asdict(found.live_peak),
        "waste": {**asdict(found.waste), "total": found.waste.total},
        "bounds": None if bounds is None else asdict(bounds),
        "driver_ms": found.driver_ms,
        "suggestions": [candidate_report(each) for each in found.suggestions],
    }


def candidate_report(candidate: Candidate) -> dict[str, Any]:
    """A candidate as JSON has it."""
    return {**asdict(candidate), "fits": candidate.fits}
