"""`allotment demo`: the main job, on the host device, in under a minute; then the same job under other settings."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli.explain import candidate_report
from allotment._cli.options import JsonOption
from allotment._cli.progress import is_ascii, progress_line

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.demo import Outcome
    from allotment.lab.tune.search import Candidate

PICTURE_WIDTH = 64
MOST_EVENTS = 1_000_000
SECONDS = 10.0
"""The longest that other settings are tried."""
EXPANDABLE = "expandable_segments:True"


def command(
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(help="Where to run it; its memory must be readable here.")] = "host",
    settings: Annotated[str, typer.Option(help="Settings string, e.g. expandable_segments:True.")] = "",
    steps: Annotated[int, typer.Option(min=10, help="Training steps.")] = 200,
    snapshot: Annotated[Path | None, typer.Option(help="Write a memory snapshot with Python stacks there.")] = None,
) -> None:
    """Train a small network whose arrays all live in the allocator, show what that did, and what settings would do.

    Its history is recorded, and run through the engine again under PyTorch's settings and under ours.
    """
    from rich.console import Console

    from allotment._allocators.caching.allocator import Allocator

    if snapshot is not None:
        _require_writable(snapshot)
    console = Console(quiet=as_json)
    allocator = Allocator(device, settings=settings)
    allocator.record_history(max_entries=MOST_EVENTS)
    outcome = _train(allocator, steps, quiet=as_json)
    with TemporaryDirectory() as folder:
        recorded = Path(folder) / "demo.pickle"
        allocator.dump_snapshot(recorded)
        if snapshot is not None:
            allocator.dump_snapshot(snapshot)
        compared = _compare(console, recorded, settings)
    if as_json:
        print(json.dumps({**_report(outcome), "candidates": [candidate_report(each) for _, each in compared]}))
    else:
        _show(console, outcome, device)
        _show_compared(console, compared)
        _show_next(console, snapshot)


def _require_writable(path: Path) -> None:
    """A path that cannot be written is refused before the training, not after it."""
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


def _compare(console: Console, recorded: Path, settings: str) -> list[tuple[str, Candidate]]:
    """The job as it ran, under PyTorch's best settings and under ours: by replay."""
    from allotment.lab.replay.run import read_recording
    from allotment.lab.tune.candidates import is_ours
    from allotment.lab.tune.search import Goal, tune

    with progress_line(console) as progress:
        tuned = tune(read_recording(recorded, progress=progress), Goal.parse("min-memory"), SECONDS, progress)
    own = next((each for each in tuned.candidates if not is_ours(each.settings)), tuned.best)
    expandable = next((each for each in tuned.candidates if each.settings == EXPANDABLE), own)
    ours = next((each for each in tuned.candidates if is_ours(each.settings)), tuned.best)
    return [
        ("as it ran", replace(tuned.recorded, settings=settings)),
        ("often advised", expandable),
        ("PyTorch's best", own),
        ("ours", ours),
    ]


def _train(allocator: object, steps: int, quiet: bool) -> Outcome:
    from rich.progress import Progress

    from allotment.lab.demo import train

    with Progress(disable=quiet, transient=True) as progress:
        task = progress.add_task("training", total=steps)
        return train(allocator, steps, lambda done: progress.update(task, completed=done))  # type: ignore[arg-type]


def _report(outcome: Outcome) -> dict[str, object]:
    stats = outcome.stats
    return {
        "steps": outcome.steps,
        "seconds": outcome.seconds,
        "first_loss": outcome.first_loss,
        "last_loss": outcome.last_loss,
        "requests": outcome.requests,
        "requested_bytes": outcome.requested_bytes,
        "device_allocations": stats["num_device_alloc"],
        "from_cache": outcome.from_cache,
        "peak_active_bytes": stats["active_bytes.all.peak"],
        "peak_reserved_bytes": stats["reserved_bytes.all.peak"],
        "waste_ratio": outcome.waste_ratio,
    }


def _show(console: Console, outcome: Outcome, device: str) -> None:
    from rich.table import Table

    from allotment._viewer.terminal import human_size

    stats = outcome.stats
    title = f"{outcome.steps} training steps on {device}, two streams, {outcome.seconds:.1f} s"
    table = Table(title=title, min_width=70)
    table.add_column("")
    table.add_column("", justify="right")
    table.add_row("loss, first and last tenth", f"{outcome.first_loss:.3f} -> {outcome.last_loss:.3f}")
    table.add_row("memory asked for, in all", human_size(outcome.requested_bytes))
    table.add_row("requests", f"{outcome.requests:,}")
    table.add_row("  served from the cache", f"{outcome.from_cache:.2%}")
    table.add_row("  device allocations", f"{stats['num_device_alloc']:,}")
    table.add_row("most in use at once", human_size(stats["active_bytes.all.peak"]))
    table.add_row("most reserved at once", human_size(stats["reserved_bytes.all.peak"]))
    table.add_row("reserved over used", f"{outcome.waste_ratio:.2f}x")
    console.print(table)
    _show_pictures(console, outcome)


def _show_compared(console: Console, compared: list[tuple[str, Candidate]]) -> None:
    from rich.markup import escape
    from rich.table import Table

    from allotment._texts import exact_size

    console.print()
    table = Table(title="The same job again, by replay of its history", min_width=70)
    for title in ("", "settings", "most reserved", "driver time"):
        table.add_column(title, justify="left" if title in ("", "settings") else "right")
    least = min(each.peak_reserved_bytes for _, each in compared)
    for name, each in compared:
        size = exact_size(each.peak_reserved_bytes)
        shown = f"[bold green]{size}[/]" if each.peak_reserved_bytes == least else size
        table.add_row(name, escape(each.settings or "a plain cache"), shown, f"{each.driver_ms:.1f} ms")
    console.print(table)


def _show_next(console: Console, snapshot: Path | None) -> None:
    from rich.markup import escape

    run = escape(str(snapshot)) if snapshot is not None else "sample"
    what = "This run" if snapshot is not None else "A recorded run of PyTorch that comes along"
    console.print(f"\n{what}; a snapshot of your own works in the same way:")
    for command, meaning in (
        ("explain", "why it needs that much memory"),
        ("tune", "which settings would need less, and the line to paste"),
        ("view", "all of it in the browser"),
    ):
        console.print(f"  [bold]allotment {command} {run}[/]  {meaning}", highlight=False, soft_wrap=True)


def _show_pictures(console: Console, outcome: Outcome) -> None:
    from allotment._viewer.terminal import human_size, plain_if, segment_map, sparkline

    def draw(text: str) -> None:
        console.print(plain_if(is_ascii(console), text), markup=False, highlight=False)

    top = max(outcome.reserved_bytes)
    draw("\nstep by step")
    draw(f"in use    {sparkline(outcome.live_bytes, PICTURE_WIDTH, top)}")
    draw(f"reserved  {sparkline(outcome.reserved_bytes, PICTURE_WIDTH, top)}")
    draw("\nsegments at the end, by address (█ in use, ▒ partly, ░ free)")
    for segment, line in zip(outcome.segments, segment_map(outcome.segments, PICTURE_WIDTH), strict=True):
        draw(f"{human_size(segment['total_size']):>10}  {line}")  # type: ignore[arg-type]
