"""A line that shows the current task while it runs; nothing if the output is not a terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console


@contextmanager
def progress_line(console: Console) -> Iterator[Callable[[str], None]]:
    """Yield a function that shows the current task."""
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Progress(*columns, console=console, transient=True, disable=not console.is_terminal) as bar:
        task = bar.add_task("", total=None)
        yield lambda what: bar.update(task, description=what)


def is_ascii(console: Console) -> bool:
    """Whether a terminal can show only ASCII."""
    return not console.encoding.lower().startswith("utf")
