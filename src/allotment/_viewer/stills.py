"""A run small enough for a file: columns of the whole run, and the address map at a number of moments.

The moments are those with the most memory in use, one for each interval, so the peak is among them. Most pieces stay
the same from one moment to the next. So a piece is stored once, with its first and last moment; the file has as many
moments as fit into a given number of pieces.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._viewer.answers import Run
from allotment._viewer.packed import pack
from allotment.lab.explain.holders import line_of
from allotment.lab.timeline.pieces import AddressAxis, Pieces

__all__ = ["stills"]

COLUMNS = 1500
MOST_STILLS = 600
MOST_PIECES = 40_000
"""The largest number of pieces of one run; about 30 bytes each in the file."""
MOST_STACKS = 2000


def stills(run: Run, pieces: int = MOST_PIECES) -> tuple[dict[str, Any], bytes]:
    """The overview of a run, and its numbers."""
    timeline = run.timeline
    moments, kept = _gathered_stills(run, pieces)
    first, last, place, size, state, life, segment, unit = kept
    arrays: dict[str, NDArray[Any]] = {}
    for by in timeline.groupings:
        _, series = run.series_parts(0, float(timeline.entries[-1]), COLUMNS, by)
        arrays |= {f"{by}.bands": series["bands"]} if arrays else {**series, f"{by}.bands": series["bands"]}
        arrays.pop("bands", None)
    lives, numbers = np.unique(life, return_inverse=True)
    lives = lives[lives >= 0] if len(lives) else lives
    numbers = numbers - (1 if len(life) and life.min() < 0 else 0)
    columns = timeline.lives
    shown = timeline.stack_of[lives]
    stacks, stack = np.unique(shown, return_inverse=True)
    arrays |= {
        "still": moments,
        "still_time": timeline.times[moments] - timeline.times[0],
        "still_entry": timeline.entries[moments],
        "first": first,
        "last_still": last,
        "place": place,
        "size": size,
        "state": state,
        "life": numbers.astype(np.int32),
        "segment": segment,
        "unit": unit,
        "life_number": lives,
        "life_address": columns.address[lives],
        "life_size": columns.size[lives],
        "life_requested": columns.requested[lives],
        "life_begin": columns.begin[lives],
        "life_freed": columns.freed[lives],
        "life_end": columns.end[lives],
        "life_begin_entry": timeline.entries[columns.begin[lives]],
        "life_freed_entry": timeline.entries[np.minimum(columns.freed[lives], timeline.last)],
        "life_end_entry": timeline.entries[np.minimum(columns.end[lives], timeline.last)],
        "life_begin_time": timeline.times[columns.begin[lives]] - timeline.times[0],
        "life_end_time": timeline.times[np.minimum(columns.end[lives], timeline.last)] - timeline.times[0],
        "life_pool": columns.pool[lives],
        "life_stack": stack.astype(np.int32),
        **{f"{by}.band": timeline.grouping(by).band[lives] for by in timeline.groupings},
    }
    streams, stream = np.unique(columns.stream[lives], return_inverse=True)
    arrays["life_stream"] = stream.astype(np.int32)
    listed = [number for number in stacks.tolist()][:MOST_STACKS]
    about = {
        **run.overview(),
        "stills": len(moments),
        "pools": [list(pool) for pool in timeline.pools],
        "streams": [str(handle) for handle in streams.tolist()],
        "stacks": [run.frames(number) for number in listed],
        "lines": [line_of(timeline.stacks[number]) if number >= 0 else "" for number in listed],
        "waste_at_stills": [timeline.waste(int(moment)) for moment in moments],
    }
    return about, pack({}, arrays)


def _gathered_stills(run: Run, most: int) -> tuple[NDArray[np.int32], list[NDArray[Any]]]:
    """Return as many moments as the pieces allow, with the peaks, and the pieces with the stills that have them."""
    timeline = run.timeline
    peaks = {timeline.peak_reserved[0], timeline.peak_live[0], 0, timeline.last}
    peaks |= {mark.moment for mark in timeline.marks if mark.kind == "oom"}
    opens_at = run.about.get("opens_at", 0)
    wanted = min(MOST_STILLS, timeline.last + 1)
    while True:
        edges = np.unique(np.linspace(0, timeline.last + 1, wanted + 1).astype(np.int32))
        highest = timeline.stretch(edges, timeline.groupings[0]).moment.tolist()
        moments = np.array(sorted({*highest, *sorted(peaks)[:MOST_STILLS], opens_at}), dtype=np.int32)
        chained = _Chain()
        for number, moment in enumerate(moments.tolist()):
            chained.add(number, timeline.pieces(moment), timeline.axis)
            if len(chained.rows) > most and wanted > 8:
                break
        else:
            return moments, chained.columns()
        wanted = max(8, wanted // 2)


class _Chain:
    """Merge pieces that stay the same from one still to the next into one row."""

    def __init__(self) -> None:
        self.rows: list[list[int]] = []
        self._open: dict[tuple[int, ...], int] = {}

    def add(self, number: int, pieces: Pieces, axis: AddressAxis) -> None:
        columns = (axis.places(pieces.address), pieces.size, pieces.state, pieces.life)
        start = np.append(axis.places(pieces.segment_start), -1)[pieces.segment]
        length = np.append((pieces.segment_end - pieces.segment_start).astype(np.int64), 0)[pieces.segment]
        page = np.append(pieces.segment_page, 0)[pieces.segment]
        segments = zip(start.tolist(), np.where(page > 0, page, length).tolist(), strict=True)
        before, self._open = self._open, {}
        for key, segment in zip(zip(*(column.tolist() for column in columns), strict=True), segments, strict=True):
            row = before.get(key)
            if row is None:
                row = len(self.rows)
                self.rows.append([number, number, *key, *segment])
            self.rows[row][1] = number
            self._open[key] = row

    def columns(self) -> list[NDArray[Any]]:
        found = list(zip(*self.rows, strict=True)) if self.rows else [()] * 8
        kinds = (np.int32, np.int32, np.int64, np.int64, np.uint8, np.int32, np.int64, np.int64)
        return [np.array(column, dtype=kind) for column, kind in zip(found, kinds, strict=True)]
