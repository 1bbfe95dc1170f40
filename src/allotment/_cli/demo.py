"""`allotment demo`: explains and tunes a recorded job that needed too much memory, then runs a job here."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

from allotment._cli.options import JsonOption

if TYPE_CHECKING:
    from rich.console import Console

    from allotment._cli.demo_screen import Recorded
    from allotment.lab.demo import Outcome
    from allotment.lab.tune.search import Tuned

MOST_EVENTS = 1_000_000
SECONDS = 5.0
"""The time limit for trying other settings, for each of the two jobs."""
SAMPLE = "sample"


def command(
    as_json: JsonOption = False,
    device: Annotated[str, typer.Option(help="Where the live job runs; its memory must be readable here.")] = "host",
    settings: Annotated[str, typer.Option(help="Settings string of the live job.")] = "",
    steps: Annotated[int, typer.Option(min=10, help="Training steps of the live job.")] = 200,
    snapshot: Annotated[Path | None, typer.Option(help="Write a memory snapshot of the live job there.")] = None,
) -> None:
    """Explain why a recorded PyTorch job needed so much memory, find settings that need less, then run a job here.

    The recorded job comes with the package. The live job trains a small network on two streams, with all arrays in the
    allocator. Nothing needs a GPU, and the whole demo takes a few seconds.
    """
    from rich.console import Console

    from allotment._allocators.caching.allocator import Allocator
    from allotment._cli import demo_screen
    from allotment.lab.demo import require_memory

    if snapshot is not None:
        _require_writable(snapshot)
    allocator = Allocator(device, settings=settings)
    require_memory(allocator)
    allocator.record_history(max_entries=MOST_EVENTS)
    console = Console(quiet=as_json, highlight=False)
    with _progress(console) as reached:
        recorded = _recorded(console, reached)
        outcome, tuned = _live(allocator, steps, snapshot, reached)
    if as_json:
        print(json.dumps(demo_screen.report(recorded, outcome, tuned)))
    else:
        demo_screen.show_live(console, outcome, tuned, device)
        demo_screen.show_next(console, snapshot)


def _require_writable(path: Path) -> None:
    """Refuse an unwritable path before the training, not after it."""
    existed = path.exists()
    path.open("ab").close()
    if not existed:
        path.unlink()


@contextmanager
def _progress(console: Console) -> Iterator[Callable[[str, float], None]]:
    """Yield a function that shows the current task and the fraction that is done."""
    from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn

    columns = (BarColumn(bar_width=24), TaskProgressColumn(), TextColumn("{task.description}"))
    with Progress(*columns, console=console, transient=True, disable=not console.is_interactive) as bar:
        task = bar.add_task("", total=1.0)
        yield lambda what, part: bar.update(task, description=what, completed=part)


def _recorded(console: Console, reached: Callable[[str, float], None]) -> Recorded:
    """Print the question and its answer, each part as soon as it is known."""
    from allotment._cli import demo_screen
    from allotment._cli.demo_screen import Recorded
    from allotment.lab.explain.report import explain
    from allotment.lab.replay.run import read_recording
    from allotment.lab.tune.search import Goal, tune

    reached("reading a recorded job", 0.0)
    recording = read_recording(SAMPLE)
    as_it_ran = recording.replay()
    demo_screen.show_question(console, as_it_ran)
    reached("asking why", 0.05)
    explained = explain(recording)
    demo_screen.show_reasons(console, explained)
    reached("trying other settings", 0.1)
    tuned = tune(recording, Goal.parse("min-memory"), SECONDS, lambda what: reached(what, 0.2))
    again = recording.replay(tuned.best.settings)
    found = Recorded(as_it_ran, explained, tuned, again)
    demo_screen.show_answer(console, found)
    return found


def _live(
    allocator: object, steps: int, snapshot: Path | None, reached: Callable[[str, float], None]
) -> tuple[Outcome, Tuned]:
    """Run a live job, and replay it under other settings."""
    from allotment.lab.demo import train
    from allotment.lab.replay.run import read_recording
    from allotment.lab.tune.search import Goal, tune

    outcome = train(allocator, steps, lambda done: reached("training, live", 0.3 + 0.6 * done / steps))  # type: ignore[arg-type]
    reached("trying other settings on it", 0.9)
    with TemporaryDirectory() as folder:
        recorded = Path(folder) / "demo.pickle"
        allocator.history.dump_snapshot(recorded)  # type: ignore[attr-defined]
        if snapshot is not None:
            allocator.history.dump_snapshot(snapshot)  # type: ignore[attr-defined]
        tuned = tune(read_recording(recorded), Goal.parse("min-memory"), SECONDS, lambda what: reached(what, 0.95))
    return outcome, tuned
