"""Memory drawn with characters."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any

_BARS = "▁▂▃▄▅▆▇█"
_FREE, _PARTLY, _IN_USE = "░", "▒", "█"


def sparkline(values: Sequence[float], width: int, top: float | None = None) -> str:
    """A line of bars, `width` of them at most, each the largest value of its stretch; `top` is a full bar."""
    if not values:
        return ""
    top = max(values) if top is None else top
    count = min(width, len(values))
    edges = [len(values) * i // count for i in range(count + 1)]
    peaks = [max(values[start:end]) for start, end in pairwise(edges)]
    return "".join(_BARS[min(len(_BARS) - 1, int(peak / top * len(_BARS)))] if top else _BARS[0] for peak in peaks)


def segment_map(segments: Iterable[dict[str, Any]], width: int) -> list[str]:
    """A line a segment (of `Allocator.segments()`): each character a stretch of it, in use, partly, or free."""
    return [_segment_line(segment, width) for segment in segments]


def _segment_line(segment: dict[str, Any], width: int) -> str:
    step = segment["total_size"] / width
    used = [0.0] * width
    for block in segment["blocks"]:
        if block["state"] == "inactive":
            continue
        start = block["address"] - segment["address"]
        for cell in range(int(start / step), min(width, int((start + block["size"] - 1) / step) + 1)):
            overlap = min(start + block["size"], (cell + 1) * step) - max(start, cell * step)
            used[cell] += max(overlap, 0.0)
    return "".join(_FREE if part <= 0 else _IN_USE if part >= 0.99 * step else _PARTLY for part in used)


def human_size(size: float) -> str:
    """A number of bytes for people: 3 significant figures or so, binary units."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(size) < 1024:
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    return f"{size:.1f} TiB"


def exact_size(size: int) -> str:
    """A number of bytes with enough digits to decide by: MiB, from a thousand of them on with a separator."""
    if size < 1 << 10:
        return f"{size} B"
    if size < 1 << 20:
        return f"{size / (1 << 10):.1f} KiB"
    return f"{size / (1 << 20):,.1f} MiB"
