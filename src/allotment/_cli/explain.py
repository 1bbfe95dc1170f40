"""`allotment explain`: why a run needed the memory that it did, or ran out of it."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from typing import TYPE_CHECKING, Annotated, Any

import typer

from allotment._cli import ExitCode
from allotment._cli.options import ClusterOption, JsonOption, SnapshotsArgument
from allotment._cli.progress import progress_line
from allotment._cli.ranks import decided, print_errors, print_ranks

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from rich.console import Console

    from allotment.lab.explain.report import Explanation
    from allotment.lab.ranks.figures import Figures
    from allotment.lab.tune.search import Candidate

MOST_LINES = 8
"""Lines of code that are named on the screen; `--json` has all of them."""
CAUSES = {
    "rounding": "blocks are larger than what was asked for",
    "pieces": "free in pieces, beside blocks in use",
    "other_streams": "free for other streams",
    "private_pools": "free in other pools",
    "waiting": "freed, waiting for other streams",
    "unreleased": "free, and could go back to the device",
}


def command(
    snapshots: SnapshotsArgument,
    device: Annotated[
        int | None, typer.Option(help="Which device; the one with most in the file unless given.")
    ] = None,
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
            snapshot, rows, done = decided(files, cluster, progress)
            failed = print_errors(done)
        found = explained(snapshot, device, compat, progress)
    if as_json:
        ranks = {"file": snapshot, "ranks": [asdict(row) for row in rows]} if rows else {}
        print(json.dumps({**_report(found), **ranks}))
        raise typer.Exit(ExitCode.BAD_INPUT if failed else ExitCode.DONE)
    if rows:
        print_ranks(console, rows, snapshot)
    _print_failure(console, found)
    _print_peak(console, found)
    _print_waste(console, found)
    _print_suggestions(console, found)
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
        },
        "peak": asdict(found.peak),
        "waste": {**asdict(found.waste), "total": found.waste.total},
        "bounds": None if bounds is None else asdict(bounds),
        "suggestions": [candidate_report(each) for each in found.suggestions],
    }


def candidate_report(candidate: Candidate) -> dict[str, Any]:
    """A candidate as JSON has it."""
    return {**asdict(candidate), "fits": candidate.fits}


# --- for people --------------------------------------------------------------------------------------------------


def _print_failure(console: Console, found: Explanation) -> None:
    from rich.markup import escape

    from allotment._viewer.terminal import exact_size

    failure = found.failure
    if failure is None:
        return
    console.print(
        f"[bold red]Out of memory[/] at entry {failure.entry:,}: {exact_size(failure.size)} on stream {failure.stream}"
    )
    for frame in failure.frames[:MOST_LINES]:
        console.print(escape(f"    {frame['filename']}:{frame['line']} {frame['name']}"))
    console.print("  What was free then:" if failure.free else "  Nothing was free then.")
    for memory in failure.free:
        console.print(escape(f"    {exact_size(memory.bytes):>12}  {memory.reason}"))
    console.print()


def _print_peak(console: Console, found: Explanation) -> None:
    from rich.markup import escape

    from allotment._viewer.terminal import exact_size

    peak = found.peak
    when = f"at entry {peak.entry:,}" if peak.entry >= 0 else "when the snapshot was taken"
    console.print(
        f"[bold]Device {found.device}: {exact_size(peak.reserved_bytes)} reserved[/] at the most, {when};"
        f" {exact_size(peak.live_bytes)} of it in use"
    )
    if found.bounds is not None:
        console.print(
            f"  The least that any allocator needs: {exact_size(found.bounds.peak_live_bytes)} live at once,"
            f" {exact_size(found.bounds.packing_bytes)} packed into one segment"
        )
    for holder in peak.holders[:MOST_LINES]:
        console.print(escape(f"    {exact_size(holder.bytes):>12}  {holder.where} ({holder.blocks:,} blocks)"))
    if len(peak.holders) > MOST_LINES:
        left = sum(holder.bytes for holder in peak.holders[MOST_LINES:])
        console.print(f"    {exact_size(left):>12}  in {len(peak.holders) - MOST_LINES:,} other lines")
    console.print()


def _print_waste(console: Console, found: Explanation) -> None:
    from allotment._viewer.terminal import exact_size

    console.print(f"[bold]{exact_size(found.waste.total)} reserved and not in use[/]")
    for field in fields(found.waste):
        size = getattr(found.waste, field.name)
        if size:
            console.print(f"    {exact_size(size):>12}  {CAUSES[field.name]}")
    console.print()


def _print_suggestions(console: Console, found: Explanation) -> None:
    from rich.markup import escape

    from allotment._viewer.terminal import exact_size

    if found.bounds is None:
        console.print("The snapshot has no history, so other settings cannot be tried.")
        return
    if not found.suggestions:
        console.print("None of the settings that were tried needs less.")
        return
    console.print("[bold]What would help[/], tried by replay:")
    for each in found.suggestions:
        console.print(
            escape(f"    {exact_size(each.peak_reserved_bytes):>12}  {each.settings}")
            + ("" if each.fits else " [red](still out of memory)[/]")
        )
    for line in lines_to_paste([each.settings for each in found.suggestions]):
        console.print(escape(f"To paste: {line}"), soft_wrap=True)


def lines_to_paste(best_first: Sequence[str]) -> list[str]:
    """How the best settings are put in force, and the best of PyTorch's own if those are not."""
    from allotment.lab.tune.candidates import is_ours

    best = next((settings for settings in best_first if settings), None)
    own = next((settings for settings in best_first if settings and not is_ours(settings)), None)
    return [_line_to_paste(settings) for settings in dict.fromkeys((best, own)) if settings is not None]


def _line_to_paste(settings: str) -> str:
    from allotment.lab.tune.candidates import is_ours

    if is_ours(settings):
        return f"ALLOTMENT_CONF={settings} python -m allotment.torch PROGRAM"
    return f"PYTORCH_CUDA_ALLOC_CONF={settings}"
