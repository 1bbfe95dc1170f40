"""Output of commands about several files."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from allotment._texts import printable

if TYPE_CHECKING:
    from rich.console import Console

    from allotment.lab.ranks.figures import Figures
    from allotment.lab.ranks.workers import Done


def print_errors(done: Sequence[Done[Any]]) -> bool:
    """Report the files that could not be read; return whether there are any."""
    failed = [each for each in done if each.error is not None]
    for each in failed:
        print(f"allotment: {printable(str(each.error))}", file=sys.stderr)
    return bool(failed)


def decided(
    files: Sequence[str], device: int | None, cluster: str | None, progress: Callable[[str], None]
) -> tuple[str, list[Figures], list[Done[Figures]]]:
    """Return the file of the rank that decides, the figures of all files that could be read, and all results."""
    from allotment.errors import FormatError
    from allotment.lab.ranks.together import deciding_rank, figures_of_all

    done = figures_of_all(files, device, cluster, progress)
    rows = [each.value for each in done if each.value is not None]
    if not rows:
        raise FormatError("none of the files has a history that can be read: " + (done[0].error or ""))
    return deciding_rank(rows).file, rows, done


def print_ranks(console: Console, rows: Sequence[Figures], deciding: str) -> None:
    """Say in one line which rank decides."""
    from rich.markup import escape

    from allotment._texts import exact_size

    peaks = [row.peak_reserved_bytes for row in rows]
    console.print(
        escape(
            f"{len(rows)} runs, {exact_size(min(peaks))} to {exact_size(max(peaks))} reserved at most."
            f" {deciding} decides:"
        )
    )
    console.print()
