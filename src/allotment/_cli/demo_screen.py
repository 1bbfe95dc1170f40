"""The output of `allotment demo`: a question, its answer, and a live job."""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allotment._cli.explain import candidate_report
from allotment._cli.explain_screen import CAUSES
from allotment._cli.paste import line_to_paste
from allotment._cli.progress import is_ascii
from allotment._texts import exact_size
from allotment._viewer.terminal import human_size, plain_if, sparkline

if TYPE_CHECKING:
    from rich.console import Console

    from allotment._cli.tables import Row
    from allotment.lab.demo import Outcome
    from allotment.lab.explain.report import Explanation
    from allotment.lab.replay.result import Result
    from allotment.lab.tune.search import Candidate, Tuned

WIDTH = 48
"""Characters of a drawing, at most."""
BAR = 24
SIZE = 12
"""Characters of a size."""
EXPANDABLE = "expandable_segments:True"


@dataclass(frozen=True)
class Recorded:
    """The facts about the recorded job."""

    as_it_ran: Result
    explained: Explanation
    tuned: Tuned
    again: Result
    """The replay under the best settings."""


def _caption(console: Console, text: str) -> None:
    from rich.rule import Rule
    from rich.text import Text

    dash = "-" if is_ascii(console) else "─"
    console.print()
    if len(text) + 4 > console.width:
        console.print(Text(text, style="bold"))  # a rule would cut it off
    else:
        console.print(Rule(Text(text, style="bold"), characters=dash, align="left", style="dim"))


def _draw(console: Console, name: str, sizes: list[int], top: int, peak: int, style: str = "") -> None:
    from rich.text import Text

    line = Text(f"  {name:9} ")
    width = max(1, min(WIDTH, console.width - len(line) - 1 - SIZE))
    line.append(plain_if(is_ascii(console), sparkline(sizes, width, top)), style=style)
    line.append(f" {exact_size(peak)}")
    console.print(line, soft_wrap=True)


def show_question(console: Console, ran: Result) -> None:
    """Show the recorded job's memory over time."""
    _caption(console, f"This job needed {exact_size(ran.peak_reserved_bytes)}. Does it have to?")
    console.print(
        f"A training job of PyTorch on an H200, recorded: {ran.events:,} events, replayed in"
        f" {1000 * ran.seconds:.1f} ms.",
        "Every decision was made again." if ran.matches_recording else "",
    )
    top = ran.peak_reserved_bytes
    _draw(console, "active", ran.live, top, ran.peak_active_bytes, "green")
    _draw(console, "reserved", ran.reserved, top, ran.peak_reserved_bytes, "red")


def show_reasons(console: Console, found: Explanation) -> None:
    """Show what the memory that is not in use consists of."""
    from rich.text import Text

    waste = {each.name: getattr(found.waste, each.name) for each in fields(found.waste)}
    total = max(sum(waste[cause] for cause in CAUSES), 1)
    _caption(console, f"Why? {exact_size(total)} of it is not in use at the peak (allotment explain)")
    shown = {cause: words for cause, words in CAUSES.items() if waste[cause] >= total / 100}
    most = max(1, min(BAR, console.width - SIZE - 6 - max(map(len, shown.values()), default=0)))
    for cause, words in shown.items():
        filled = max(round(most * waste[cause] / total), 1)
        bar = plain_if(is_ascii(console), "█" * filled) + " " * (most - filled)
        line = Text(f"  {exact_size(waste[cause]):>{SIZE}}  ")
        line.append(bar, style="yellow")
        console.print(line.append(f"  {words}"), soft_wrap=True)
    if found.bounds is not None:
        least = exact_size(found.bounds.peak_live_bytes)
        console.print(f"No allocator needs less than the peak of memory in use, {least}.")


def show_answer(console: Console, found: Recorded) -> None:
    """Show what other settings would need, and how to use them."""
    from rich.text import Text

    best, tuned = found.tuned.best, found.tuned
    before, after = found.as_it_ran.peak_reserved_bytes, found.again.peak_reserved_bytes
    tried = f"{tuned.tried} settings tried in {tuned.seconds:.1f} s (allotment tune)"
    _caption(console, f"No: {exact_size(after)} will do. {tried}")
    _show_candidates(console, tuned)
    _draw(console, "active", found.again.live, before, found.again.peak_active_bytes, "green")
    _draw(console, "reserved", found.again.reserved, before, after, "cyan")
    console.print(f"{1 - after / before:.0%} less, by replay under {best.settings or 'the defaults'}.", soft_wrap=True)
    console.print(Text(line_to_paste(best.settings), style="bold"), soft_wrap=True)


def compared(tuned: Tuned) -> list[tuple[str, Candidate]]:
    """Return the job as it ran, under the usual advice (if not PyTorch's best), under PyTorch's best, under ours."""
    from allotment.lab.tune.candidates import is_ours

    own = next((each for each in tuned.candidates if not is_ours(each.settings)), tuned.best)
    ours = next((each for each in tuned.candidates if is_ours(each.settings)), tuned.best)
    advised = next((each for each in tuned.candidates if each.settings == EXPANDABLE), own)
    listed = [("as it ran", tuned.recorded), ("often advised", advised), ("PyTorch's best", own), ("ours", ours)]
    return [(name, each) for name, each in listed if name != "often advised" or each is not own]


def _show_candidates(console: Console, tuned: Tuned) -> None:
    from rich.text import Text

    from allotment._cli.tables import print_table

    listed = compared(tuned)
    least = min(each.peak_reserved_bytes for _, each in listed)
    rows: list[Row] = []
    for name, each in listed:
        style = "bold green" if each.peak_reserved_bytes == least else ""
        size = Text(exact_size(each.peak_reserved_bytes), style=style)
        settings = "" if each is tuned.recorded else each.settings or "a plain cache"
        rows.append(([name, settings], [size, f"{each.driver_ms:.1f} ms"]))
    print_table(console, ["", "settings"], ["reserved", "driver time"], rows)


def show_live(console: Console, outcome: Outcome, tuned: Tuned, device: str) -> None:
    """Show the results of the live job."""
    stats = outcome.stats
    _caption(console, f"The same allocator, live: {outcome.steps} training steps on {device}, {outcome.seconds:.1f} s")
    console.print(
        f"Two streams, every array in the allocator. The loss fell from {outcome.first_loss:.3f} to"
        f" {outcome.last_loss:.3f}. {outcome.requests:,} requests for {human_size(outcome.requested_bytes)} in all:"
        f" {outcome.from_cache:.2%} were served from the cache, {stats['num_device_alloc']:,} by the device."
    )
    top = max(outcome.reserved_bytes)
    _draw(console, "active", outcome.live_bytes, top, stats["active_bytes.all.peak"], "green")
    _draw(console, "reserved", outcome.reserved_bytes, top, stats["reserved_bytes.all.peak"], "red")
    best = tuned.best
    console.print(
        f"By replay of its history, {exact_size(best.peak_reserved_bytes)} will do, under"
        f" {best.settings or 'a plain cache'}.",
        soft_wrap=True,
    )


def show_next(console: Console, snapshot: Path | None) -> None:
    """Show the commands to try next."""
    from rich.markup import escape

    run = escape(str(snapshot)) if snapshot is not None else "sample"
    _caption(console, "Next: the recorded job, or a snapshot of your own" if snapshot is None else "Next: this run")
    for command, meaning in (
        ("explain", "why it needs that much memory"),
        ("tune", "which settings need less, and the line to paste"),
        ("view", "all of it in the browser"),
    ):
        console.print(f"  [bold]{f'allotment {command} {run}':24}[/]  {meaning}", soft_wrap=True)


def report(recorded: Recorded, outcome: Outcome, tuned: Tuned) -> dict[str, Any]:
    """Return everything as one object, for programs."""
    stats = outcome.stats
    return {
        "recorded": {
            "peak_reserved_bytes": recorded.as_it_ran.peak_reserved_bytes,
            "peak_active_bytes": recorded.as_it_ran.peak_active_bytes,
            "best": candidate_report(recorded.tuned.best),
        },
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
        "candidates": [candidate_report(each) for _, each in compared(tuned)],
    }
