"""Tables that stay readable in a narrow terminal and in a pipe: they never break a name or a setting."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from textwrap import wrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    Row = tuple[Sequence[str], Sequence[str | Text]]
    """The texts, and the figures."""

INDENT = 4


def print_table(
    console: Console,
    names: Sequence[str],
    figures: Sequence[str],
    rows: Iterable[Row],
    title: str = "",
) -> None:
    """Print rows of texts and figures, under the headings `names` and `figures`.

    If the table is wider than the console, the texts of a row are on a separate line above its figures.
    """
    from rich.table import Table
    from rich.text import Text

    listed = [([Text(cell) for cell in texts], [_as_text(cell) for cell in cells]) for texts, cells in rows]
    table = Table(title=Text(title) if title else None)
    for heading in names:
        table.add_column(heading, no_wrap=True)
    for heading in figures:
        table.add_column(heading, justify="right", no_wrap=True)
    for texts, cells in listed:
        table.add_row(*texts, *cells)
    unbounded = console.options.update(width=1 << 16, max_width=1 << 16)
    if console.measure(table, options=unbounded).maximum <= console.width:
        console.print(table)
    else:
        _print_narrow(console, figures, listed, title)


def _as_text(cell: str | Text) -> Text:
    from rich.text import Text

    return Text(cell) if isinstance(cell, str) else cell


def _print_narrow(
    console: Console, figures: Sequence[str], rows: Sequence[tuple[Sequence[Text], Sequence[Text]]], title: str
) -> None:
    from rich.text import Text

    if title:
        console.print(Text(title), style="italic", soft_wrap=True)
    widths = [
        max([len(heading), *(cells[place].cell_len for _, cells in rows)]) for place, heading in enumerate(figures)
    ]
    gap = 2 if INDENT + sum(widths) + 2 * len(widths) <= console.width else 1
    headings = [Text(heading, style="bold") for heading in figures]
    console.print(_aligned(headings, widths, gap), soft_wrap=True)
    for texts, cells in rows:
        console.print(Text("  ").join(text for text in texts if text.plain), soft_wrap=True)
        console.print(_aligned(cells, widths, gap), soft_wrap=True)


def _aligned(cells: Sequence[Text], widths: Sequence[int], gap: int) -> Text:
    from rich.text import Text

    line = Text(" " * (INDENT - gap))
    for cell, width in zip(cells, widths, strict=True):
        line.append(" " * (gap + width - cell.cell_len))
        line.append_text(cell)
    return line


def print_rows(console: Console, rows: Iterable[Sequence[str]], least_width: int = 12) -> None:
    """Print rows of figures with a text after them, without headings.

    The text is wrapped in its own column. A text with a word too long for that column is not: the terminal breaks it.
    """
    from rich.text import Text

    listed = list(rows)
    widths = [
        max(least_width, *(len(row[place]) for row in listed)) for place in range(len(listed[0]) - 1 if listed else 0)
    ]
    for *figures, text in listed:
        lead = " " * INDENT + "".join(f"{figure:>{width}}  " for figure, width in zip(figures, widths, strict=True))
        room = console.width - len(lead)
        fits = all(len(word) <= room for word in text.split())
        for place, line in enumerate(wrap(text, room, break_on_hyphens=False) if fits and text else [text]):
            console.print(Text((lead if place == 0 else " " * len(lead)) + line), soft_wrap=True)


def ratio_shown(over: int, under: int) -> str:
    """Return the ratio of two figures that are shown beside it."""
    return f"{over / under:.3f}" if under else "-"
