"""One screen about a run: what to change, what failed, which code holds memory, what is wasted, what would help."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from itertools import groupby
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from allotment._cli.paste import NO_ADVICE, print_lines_to_paste
from allotment._cli.pinned_screen import print_pinned
from allotment._cli.tables import print_rows
from allotment._texts import exact_size, printable, signed_size

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.explain.kinds import KindBytes
    from allotment.lab.explain.report import Explanation, Peak

MOST_LINES = 8
"""Number of lines of code on the screen; `--json` has all of them."""
MOST_STACKS = 3
MOST_FRAMES = 4
PLUMBING = ("_call_impl", "_wrapped_call_impl")
"""How PyTorch calls a module: frames without information."""
MOST_CATEGORIES = 6
WORTH_NAMING = 0.01
"""The fraction of reserved memory that a line must pin to be shown."""
CAUSES = {
    "rounding": "blocks are larger than requested",
    "pieces": "free in pieces, beside blocks in use",
    "other_streams": "free for other streams",
    "private_pools": "free in other pools",
    "waiting": "freed, waiting for other streams",
    "unreleased": "free, and could be released to the device",
}
SURE, LIKELY = 0.9, 0.6
"""From which certainty a kind of memory is called sure, and likely."""
WORTH_SHOWING = 1.1
"""By which factor more must be in use at another moment for that moment to be shown too."""
SOURCES = {
    "annotation": "annotations of blocks",
    "metadata": "the program's metadata",
    "tenant": "tenants",
    "scope": "scopes (record_function)",
    "compiled": "compiled regions",
}


STACKS_TO_PASTE = """\
    torch.cuda.memory._record_memory_history(max_entries=1_000_000, stacks="python")   # before the steps
    torch.cuda.memory._dump_snapshot("snapshot.pickle")                                # after them"""


def print_explanation(console: Console, found: Explanation) -> None:
    """Print everything that fits on one screen."""
    _print_program(console, found)
    _print_failure(console, found)
    _print_peak(console, found)
    _print_waste(console, found)
    print_pinned(console, found.pinned)
    _print_process(console, found)
    _print_suggestions(console, found)
    _print_stacks_missing(console, found)


def _print_program(console: Console, found: Explanation) -> None:
    """Print what to change in the program, most important first, and whether memory grows from step to step."""
    from rich.text import Text

    program = [each for each in found.advice if each.kind == "program"]
    if program:
        console.print("[bold]What to change in the program[/]")
        for number, each in enumerate(program, 1):
            text = f"{number}. {each.text}"
            lines = wrap(text, console.width - 5, break_long_words=False, break_on_hyphens=False)
            console.print(Text("  " + "\n     ".join(lines)), soft_wrap=True)
    if found.steps is not None and found.growth is None:
        console.print(
            f"{found.steps.count:,} steps of about {found.steps.entries_each:,} entries each; nothing grows from step"
            " to step."
        )
    if program or found.steps is not None:
        console.print()


def _print_stacks_missing(console: Console, found: Explanation) -> None:
    """Print how to record stacks if none were recorded."""
    from allotment.lab.explain.holders import UNKNOWN

    holders = found.peak.holders
    if holders and all(holder.where == UNKNOWN for holder in holders):
        console.print("\nNo stacks were recorded, so no line of code can be named. To record them with PyTorch:")
        console.print(STACKS_TO_PASTE, soft_wrap=True, markup=False)


def device_named(device: int, devices: Sequence[int]) -> str:
    """Return a device's name, and that others exist if they do."""
    others = [str(other) for other in devices if other != device]
    named = f"Device {device}"
    return f"{named} (of {len(devices)}; --device {' or '.join(others)} shows another)" if others else named


def _print_failure(console: Console, found: Explanation) -> None:
    from rich.markup import escape

    failure = found.failure
    if failure is None:
        return
    console.print(
        f"[bold red]Out of memory[/] at entry {failure.entry:,}: {exact_size(failure.size)} on stream {failure.stream}"
        + ("" if failure.pool == (0, 0) else f", for pool {failure.pool}")
        + ("" if failure.count == 1 else f"; the first of {failure.count:,} requests that failed")
    )
    for frame in failure.frames[:MOST_LINES]:
        console.print(escape(f"    {frame['filename']}:{frame['line']} {frame['name']}"), soft_wrap=True)
    if len(failure.frames) > MOST_LINES:
        console.print(f"    and {len(failure.frames) - MOST_LINES} more frames (--json has all of them)")
    if failure.ends_recording:
        console.print("  The recording ends there: what the program would have requested next is unknown.")
    console.print("  What was free then, and why it did not serve:" if failure.free else "  Nothing was free then.")
    print_rows(console, ((exact_size(memory.bytes), memory.reason) for memory in failure.free))
    console.print()


def _print_peak(console: Console, found: Explanation) -> None:
    peak = found.peak
    console.print(
        f"[bold]{device_named(found.device, found.devices)}: {exact_size(found.peak_reserved_bytes)} reserved[/]"
        f" at most{_moment_shown(found)}; {exact_size(peak.live_bytes)} of it in use"
    )
    if found.bounds is not None:
        console.print(
            f"No allocator needs less than the peak of memory in use, {exact_size(found.bounds.peak_live_bytes)};"
            f" packed into one segment it takes {exact_size(found.bounds.packing_bytes)}"
        )
    _print_holders(console, peak)
    most = found.live_peak
    if most is not None and most.live_bytes > WORTH_SHOWING * peak.live_bytes:
        console.print(f"[bold]Most in use: {exact_size(most.live_bytes)}[/], at entry {most.entry:,}")
        _print_holders(console, most)
    console.print()


def _moment_shown(found: Explanation) -> str:
    """Return which moment is explained, and what was reserved then if that is less than the peak."""
    peak = found.peak
    if found.bounds is None:
        return ", when the snapshot was taken"
    when = f"at entry {peak.entry:,}" if peak.entry >= 0 else "before the history"
    if peak.reserved_bytes < found.peak_reserved_bytes:
        return f". Of the moments within 1 % of that, most is in use {when}: {exact_size(peak.reserved_bytes)} reserved"
    return f", {when}"


def _print_holders(console: Console, peak: Peak) -> None:
    """Print holders by line, by stack, and by the program's own names."""
    rows = []
    for holder in peak.holders[:MOST_LINES]:
        about = f"{holder.blocks:,} block{'s' if holder.blocks != 1 else ''}"
        if holder.pinned_bytes >= WORTH_NAMING * peak.reserved_bytes:
            about += f", pinning {exact_size(holder.pinned_bytes)} of free memory"
        rows.append((exact_size(holder.bytes), f"{holder.where} ({about})"))
    if len(peak.holders) > MOST_LINES:
        left = sum(holder.bytes for holder in peak.holders[MOST_LINES:])
        rows.append((exact_size(left), f"in {len(peak.holders) - MOST_LINES:,} other lines"))
    print_rows(console, rows)
    _print_kinds(console, peak)
    _print_stacks(console, peak)
    _print_categories(console, peak)


def _print_kinds(console: Console, peak: Peak) -> None:
    """Print memory by kind, if any kind is known."""
    if all(each.kind == "unknown" for each in peak.kinds):
        return
    console.print("  By kind of memory:")
    print_rows(console, ((exact_size(each.bytes), _kind_shown(each)) for each in peak.kinds))


def _kind_shown(each: KindBytes) -> str:
    if each.kind == "unknown":
        return each.kind
    return f"{each.kind} ({'sure' if each.sure >= SURE else 'likely' if each.sure >= LIKELY else 'a guess'})"


def _print_stacks(console: Console, peak: Peak) -> None:
    """Print the largest stacks, if they say more than lines do."""
    stacks = [each for each in peak.stacks[:MOST_STACKS] if len(each.frames) > 1]
    if stacks:
        console.print("  By stack, innermost first:")
        print_rows(console, ((exact_size(each.bytes), _stack_shown(each.frames)) for each in stacks))


def _stack_shown(frames: Sequence[dict[str, Any]]) -> str:
    """Return the innermost frames, including libraries, and the user's own line if it is further out."""
    from allotment._formats.pickle_columns import Frame
    from allotment.lab.explain.holders import own_frames, python_frames

    stack = tuple(Frame(**frame) for frame in frames)
    calls = [frame for frame in python_frames(stack) if frame.name not in PLUMBING]
    inner = calls[:MOST_FRAMES]
    own = own_frames(stack)[0]
    shown = [printable(f"{frame.filename.rpartition('/')[2]}:{frame.line} {frame.name}") for frame in (*inner, own)]
    if own in inner:
        return " < ".join(shown[:-1]) + (" < ..." if len(calls) > len(inner) else "")
    return " < ".join([*shown[:-1], "...", shown[-1]])


def _print_categories(console: Console, peak: Peak) -> None:
    for source, group in groupby(peak.categories, lambda each: each.source):
        categories = list(group)
        rows = [(exact_size(each.bytes), each.name or "(nothing said)") for each in categories[:MOST_CATEGORIES]]
        if len(categories) > MOST_CATEGORIES:
            left = sum(each.bytes for each in categories[MOST_CATEGORIES:])
            rows.append((exact_size(left), f"in {len(categories) - MOST_CATEGORIES:,} others"))
        console.print(f"  By {SOURCES[source]}:")
        print_rows(console, rows)


def _print_waste(console: Console, found: Explanation) -> None:
    console.print(f"[bold]{exact_size(found.waste.total)} reserved and not in use[/]")
    causes = [(getattr(found.waste, field.name), CAUSES[field.name]) for field in fields(found.waste)]
    print_rows(console, ((exact_size(size), cause) for size, cause in causes if size))
    console.print()


def _print_process(console: Console, found: Explanation) -> None:
    if not found.process:
        return
    whole = exact_size(sum(found.process.values()))
    console.print(f"[bold]The whole process held {whole}[/] of the device when the snapshot was taken", soft_wrap=True)
    print_rows(console, ((exact_size(size), printable(name)) for name, size in found.process.items() if size))
    console.print()


def _print_suggestions(console: Console, found: Explanation) -> None:
    if found.bounds is None:
        console.print("The snapshot has no history, so other settings cannot be tried.")
        return
    if found.growth is not None:
        console.print("No settings are suggested: memory that grows with every step runs out under any settings.")
        return
    if not found.suggestions:
        device = next((each.text for each in found.advice if each.kind == "device"), None)
        console.print(device or f"None of the settings tried {NO_ADVICE}", soft_wrap=device is None)
        return
    has_waits = any(each.waits for each in found.suggestions)
    columns = "most reserved, change, change of driver time" + (", waits of a stream for another" if has_waits else "")
    if found.failure is not None and found.failure.ends_recording:
        console.print("[bold]What serves everything recorded[/], tried by replay; the program may need more later:")
        console.print(columns)
    else:
        console.print(f"[bold]What would help[/], tried by replay: {columns}")
    print_rows(
        console,
        (
            (
                exact_size(each.peak_reserved_bytes),
                signed_size(each.peak_reserved_bytes - found.peak_reserved_bytes),
                f"{each.driver_ms - (found.driver_ms or 0.0):+,.1f} ms",
                *([f"{each.waits:,}"] if has_waits else []),
                each.settings or "the defaults",
            )
            for each in found.suggestions
        ),
    )
    print_lines_to_paste(console, found.suggestions, found.recorded)
