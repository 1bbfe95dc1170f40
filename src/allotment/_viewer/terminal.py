"""Memory drawn with characters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise

_BARS = "▁▂▃▄▅▆▇█"
_ASCII = str.maketrans(_BARS, "._-:=+*#")


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """Return a line of at most `width` bars, each the largest value of its interval; `top` is a full bar."""
    if not values:
        return ""
    top = max(values) if top is None else top
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    peaks = [max(values[start:end]) for start, end in pairwise(edges)]
    return "".join(_BARS[min(len(_BARS) - 1, int(peak / top * len(_BARS)))] if top else _BARS[0] for peak in peaks)


def plain_if(ascii_only: bool, text: str) -> str:
    """Return a drawing unchanged, or in ASCII for a terminal that shows only that."""
    return text.translate(_ASCII) if ascii_only else text


def scatter(
    points: Sequence[tuple[float, float, str]],
    width: int,
    height: int,
    show_x: Callable[[float], str],
    show_y: Callable[[float], str],
) -> list[str]:
    """Return the lines of a plot in ASCII: a mark for each point, the first on top, and the values at the edges."""
    across, up = [x for x, _, _ in points], [y for _, y, _ in points]
    left, right, low, high = min(across), max(across), min(up), max(up)
    grid = [[" "] * width for _ in range(height)]
    for x, y, mark in reversed(points):
        column = round((x - left) / (right - left) * (width - 1)) if right > left else 0
        row = round((high - y) / (high - low) * (height - 1)) if high > low else height - 1
        grid[row][column] = mark
    edge = max(len(show_y(low)), len(show_y(high)))
    names = {0: show_y(high), height - 1: show_y(low)}
    lines = [f"{names.get(number, ''):>{edge}} |{''.join(row).rstrip()}" for number, row in enumerate(grid)]
    ends = f"{show_x(left)}{show_x(right):>{max(1, width - len(show_x(left)))}}"
    return [*lines, " " * edge + " +" + "-" * width, " " * edge + "  " + ends]


def human_size(size: float) -> str:
    """Return a number of bytes for people: about 3 significant figures, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"
