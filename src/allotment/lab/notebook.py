"""Results that notebooks show as tables, and that convert to a DataFrame if pandas is installed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import TYPE_CHECKING, Any

from allotment.errors import UnsupportedError

if TYPE_CHECKING:
    import pandas

__all__ = ["NotebookResult", "NotebookTable"]

MOST_ROWS = 20
"""Number of rows that a notebook shows; a DataFrame has all of them."""


@dataclass(frozen=True, slots=True)
class NotebookTable:
    """Rows under titles, with plain values."""

    name: str
    columns: Sequence[str]
    rows: Sequence[Sequence[Any]]


class NotebookResult:
    """A result with tables, the most informative one first."""

    __slots__ = ()

    def tables(self) -> list[NotebookTable]:
        """Return the tables to show."""
        raise NotImplementedError

    def to_dataframe(self) -> pandas.DataFrame:
        """Return the first table with all rows, sizes in bytes. Raises UnsupportedError without pandas."""
        try:
            import pandas
        except ImportError:
            raise UnsupportedError("to_dataframe needs pandas: pip install pandas") from None
        table = self.tables()[0]
        return pandas.DataFrame(list(table.rows), columns=list(table.columns))

    def _repr_html_(self) -> str:
        return "".join(_html(table) for table in self.tables())


def _html(table: NotebookTable) -> str:
    head = "".join(f"<th>{escape(title.removesuffix('_bytes').replace('_', ' '))}</th>" for title in table.columns)
    body = "".join(
        "<tr>"
        + "".join(f"<td>{escape(_text(title, value))}</td>" for title, value in zip(table.columns, row, strict=True))
        + "</tr>"
        for row in table.rows[:MOST_ROWS]
    )
    left = len(table.rows) - MOST_ROWS
    more = f"<tr><td colspan={len(table.columns)}>and {left:,} more</td></tr>" if left > 0 else ""
    caption = f"<caption>{escape(table.name)}</caption>"
    return f"<table>{caption}<thead><tr>{head}</tr></thead><tbody>{body}{more}</tbody></table>"


def _text(title: str, value: Any) -> str:
    if value is None:
        return "-"
    if isinstance(value, int) and not isinstance(value, bool) and title.endswith("bytes"):
        return f"{value / (1 << 20):,.1f} MiB" if abs(value) >= 1 << 20 else f"{value:,} bytes"
    return f"{value:,.3f}" if isinstance(value, float) else f"{value:,}" if type(value) is int else str(value)
