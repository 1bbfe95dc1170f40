"""`allotment demo`: the main job, on the host device, in under a minute."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.demo import Outcome

PICTURE_WIDTH = 64


def command(
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(help="Where to run it; its memory must be readable here.")] = "host",
    settings: Annotated[str, typer.Option(help="Settings string, e.g. expandable_segments:True.")] = "",
    steps: Annotated[int, typer.Option(min=10, help="Training steps.")] = 200,
    snapshot: Annotated[Path | None, typer.Option(help="Write a memory snapshot with Python stacks there.")] = None,
) -> None:
    """Train a small network whose arrays all live in the allocator, then show what the allocator did."""
    from allotment._allocators.caching.allocator import Allocator

    allocator = Allocator(device, settings=settings)
    if snapshot is not None:
        allocator.record_history(max_entries=100_000)
    outcome = _train(allocator, steps, quiet=as_json)
    if snapshot is not None:
        allocator.dump_snapshot(snapshot)
    if as_json:
        print(json.dumps(_report(outcome)))
    else:
        _show(outcome, device, snapshot)


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


def _show(outcome: Outcome, device: str, snapshot: Path | None) -> None:
    from rich.console import Console
    from rich.table import Table

    from allotment._viewer.terminal import human_size

    console = Console()
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
    if snapshot is not None:
        console.print(f"snapshot written to {snapshot}")


def _show_pictures(console: Console, outcome: Outcome) -> None:
    from allotment._viewer.terminal import human_size, segment_map, sparkline

    top = max(outcome.reserved_bytes)
    console.print("\nstep by step")
    console.print(f"in use    {sparkline(outcome.live_bytes, PICTURE_WIDTH, top)}")
    console.print(f"reserved  {sparkline(outcome.reserved_bytes, PICTURE_WIDTH, top)}")
    console.print("\nsegments at the end, by address (█ in use, ▒ partly, ░ free)")
    for segment, line in zip(outcome.segments, segment_map(outcome.segments, PICTURE_WIDTH), strict=True):
        console.print(f"{human_size(segment['total_size']):>10}  {line}")  # type: ignore[arg-type]
