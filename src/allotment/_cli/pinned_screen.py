"""Prints a few lines about the pinned memory of a snapshot, for commands that describe a device's memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from allotment._cli.tables import print_rows
from allotment._texts import exact_size

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.pinned import PinnedFigures

MOST_LINES = 3
WORTH_SAYING = 0.1
"""The share of the peak that rounding must be able to explain to be mentioned."""


def print_pinned(console: Console, found: PinnedFigures | None) -> None:
    """Print the figures; nothing for a snapshot without pinned memory."""
    if found is None:
        return
    when = f"at entry {found.peak_entry:,} of its history" if found.peak_entry >= 0 else "when its history began"
    parts = [f"{exact_size(found.in_use_bytes)} of it in use"]
    parts += [f"{exact_size(found.waiting_bytes)} waiting for copies"] if found.waiting_bytes else []
    parts += [f"{exact_size(found.cached_bytes)} cached"] if found.cached_bytes else []
    console.print(
        f"[bold]Pinned memory: {exact_size(found.peak_bytes)}[/] at the most, {when}; {', '.join(parts)}",
        soft_wrap=True,
    )
    rows = [
        (exact_size(each.bytes), f"{each.where} ({each.blocks:,} block{'s' if each.blocks != 1 else ''})")
        for each in found.holders[:MOST_LINES]
    ]
    if len(found.holders) > MOST_LINES:
        left = sum(each.bytes for each in found.holders[MOST_LINES:])
        rows.append((exact_size(left), f"in {len(found.holders) - MOST_LINES:,} other lines"))
    print_rows(console, rows)
    if found.rounding_bytes_at_most > WORTH_SAYING * found.peak_bytes:
        console.print(
            f"  Up to {exact_size(found.rounding_bytes_at_most)} can be rounding to powers of two;"
            " python -m allotment.torch --pinned tight does not round.",
            soft_wrap=True,
        )
    console.print()
