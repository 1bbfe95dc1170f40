"""Answers a page's questions about a run: overview, columns of time, a moment, a block, a search.

An answer has as many numbers as the screen has room for, however long the history is.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._viewer.packed import pack
from allotment.lab.explain.holders import line_of
from allotment.lab.explain.waste import Waste
from allotment.lab.timeline.columns import first_highest
from allotment.lab.timeline.pieces import Pieces, PieceState
from allotment.lab.timeline.timeline import SEARCH, Timeline

__all__ = ["CAUSES", "STATES", "Run"]

CAUSES = [field.name for field in fields(Waste)]
STATES = [state.name.lower() for state in PieceState]
MOST_COLUMNS = 4000
MOST_CELLS = 400_000
MOST_LISTED = 100
MOST_FRAMES = 64


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """A timeline with its description."""

    timeline: Timeline
    about: dict[str, Any]
    """Label, device, settings and more: see `runs`."""

    def overview(self) -> dict[str, Any]:
        """The constant part: length, peaks, groupings, marks."""
        timeline = self.timeline
        peak_reserved, peak_live = timeline.peak_reserved, timeline.peak_live
        return {
            **self.about,
            "last": timeline.last,
            "blocks": int(np.count_nonzero(timeline.lives.size)),
            "first_time": int(timeline.times[0]),
            "last_time": int(timeline.times[-1]),
            "last_entry": int(timeline.entries[-1]),
            "peak_reserved": {
                "moment": peak_reserved[0],
                "entry": int(timeline.entries[peak_reserved[0]]),
                "bytes": peak_reserved[1],
                "bytes_there": timeline.reserved_at(peak_reserved[0]),
            },
            "peak_live": {
                "moment": peak_live[0],
                "entry": int(timeline.entries[peak_live[0]]),
                "bytes": peak_live[1],
            },
            "waste_at_peak": dict(zip(CAUSES, timeline.waste(peak_reserved[0]), strict=True)),
            "asker": {"stream": str(timeline.asker[0]), "pool": list(timeline.asker[1])},
            "groupings": {by: timeline.grouping(by).names for by in timeline.groupings},
            "rest": [by for by in timeline.groupings if timeline.grouping(by).has_rest],
            "causes": CAUSES,
            "states": STATES,
            "addresses": timeline.axis.length,
            "marks": [
                [mark.moment, mark.kind, mark.size, self._time(mark.moment), int(timeline.entries[mark.moment])]
                for mark in timeline.marks
            ],
        }

    # --- over time ---------------------------------------------------------------------------------------------------

    def series(self, start: float, end: float, columns: int, by: str, axis: str = "event", query: str = "") -> bytes:
        """Return columns from `start` to `end`: entries of the history, or microseconds from the first one."""
        return pack(*self.series_parts(start, end, columns, by, axis, query))

    def series_parts(
        self, start: float, end: float, columns: int, by: str, axis: str = "event", query: str = ""
    ) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """The same, not packed yet."""
        timeline = self.timeline
        edges = timeline.snapped(self._edges(start, end, max(1, min(columns, MOST_COLUMNS)), axis))
        found = timeline.stretch(edges, by)
        arrays: dict[str, NDArray[Any]] = {
            "start": edges[:-1],
            "start_time": timeline.times[edges[:-1]] - timeline.times[0],
            "start_entry": timeline.entries[edges[:-1]],
            "moment": found.moment,
            "moment_entry": timeline.entries[found.moment],
            "reserved": found.reserved,
            "bands": found.bands.T,
            "waste_moment": found.waste_moment,
            "waste_entry": timeline.entries[found.waste_moment],
            "waste": found.waste.T,
        }
        if query:
            arrays["found"] = timeline.stretch(edges, SEARCH + query).bands[:, 0]
        return {"end": int(edges[-1]), "by": by}, arrays

    def _edges(self, start: float, end: float, columns: int, axis: str) -> NDArray[np.int32]:
        last = self.timeline.last
        if axis == "time":
            times = self.timeline.times
            first, final = (int(np.searchsorted(times, times[0] + time)) for time in (start, end))
            # Equal steps of time, and every event where there are fewer events than columns.
            if final - first > columns:
                steps = np.searchsorted(times, np.linspace(times[0] + start, times[0] + end, columns + 1))
                return np.unique(np.clip(np.append(steps, [first, final + 1]), 0, last + 1)).astype(np.int32)
            start, end = first, final
        else:
            # From the moment before the first of these entries to the one after the last.
            entries = self.timeline.entries
            start = int(np.searchsorted(entries, start, "left")) - 1
            end = int(np.searchsorted(entries, end, "right")) - 1
        low, high = int(np.clip(start, 0, last)), int(np.clip(np.ceil(end), 0, last)) + 1
        return np.unique(np.linspace(low, high, min(columns, high - low) + 1).astype(np.int32))

    # --- at a moment -------------------------------------------------------------------------------------------------

    def moment(self, moment: int, start: float, end: float, cells: int, by: str, query: str = "") -> bytes:
        """Return the state of memory: figures, holders, and the map of a part of the address axis."""
        timeline = self.timeline
        moment = int(np.clip(moment, 0, timeline.last))
        pieces = timeline.pieces(moment)
        found = timeline.search(query) if query else None
        shown = self._cells(pieces, start, end, max(1, min(cells, MOST_CELLS)), by, found)
        return pack(self.summary(moment, pieces, by, found), shown)

    def summary(self, moment: int, pieces: Pieces, by: str, found: NDArray[np.bool_] | None = None) -> dict[str, Any]:
        """Return the figures of a moment."""
        timeline = self.timeline
        live = pieces.life[pieces.state == PieceState.LIVE]
        grouping = timeline.grouping(by)
        band, requested = grouping.band[live], timeline.lives.requested[live]
        count = len(grouping.names)
        about = {
            "moment": moment,
            "entry": int(timeline.entries[moment]),
            "time": int(timeline.times[moment] - timeline.times[0]),
            "live": int(requested.sum()),
            "blocks": len(live),
            "segments": len(pieces.segment_start),
            "states": [pieces.bytes_in(state) for state in PieceState],
            "waste": timeline.waste(moment),
            "held": np.bincount(band, requested, minlength=count).astype(np.int64).tolist(),
            "counts": np.bincount(band, minlength=count).tolist(),
        }
        if found is not None:
            about["found"] = {"blocks": int(found[live].sum()), "bytes": int(requested[found[live]].sum())}
        return about

    def _cells(
        self, pieces: Pieces, start: float, end: float, cells: int, by: str, found: NDArray[np.bool_] | None
    ) -> dict[str, NDArray[Any]]:
        """Return the pieces of a part of the address axis; pieces that share a cell become one mixed piece."""
        place = self.timeline.axis.places(pieces.address)
        inside = slice(np.searchsorted(place + pieces.size, start, "right"), np.searchsorted(place, end, "left"))
        place, size, state, life = place[inside], pieces.size[inside], pieces.state[inside], pieces.life[inside]
        band = self.timeline.grouping(by).band[life]
        hit = (life >= 0) & found[life] if found is not None else np.zeros(len(life), dtype=bool)
        segment = pieces.segment[inside]
        wide = max((end - start) / cells, 1.0)
        cell = ((place - start) / wide).astype(np.int64)
        small = size < wide
        joins = np.zeros(len(place), dtype=bool)
        joins[1:] = small[1:] & small[:-1] & (cell[1:] == cell[:-1])
        firsts = np.flatnonzero(~joins)
        if len(firsts) < len(place):
            largest = first_highest(size, firsts)
            hit = np.logical_or.reduceat(hit, firsts)
            place, size = place[firsts], np.add.reduceat(size, firsts)
            mixed = np.diff(np.append(firsts, len(joins))) > 1
            state, life, band, segment = state[largest], life[largest], band[largest], segment[largest]
        else:
            mixed = joins
        return {
            "place": place,
            "size": size,
            "state": state,
            "band": band,
            "life": life,
            "segment": segment,
            "mixed": mixed.astype(np.uint8),
            "hit": hit.astype(np.uint8),
        }

    # --- a block -----------------------------------------------------------------------------------------------------

    def block(self, life: int, moment: int) -> dict[str, Any]:
        """Return a block: stack, sizes, lifetime, and what it pins at a moment.

        Empty for a block that does not exist.
        """
        lives, timeline = self.timeline.lives, self.timeline
        if not 0 <= life < len(lives) or lives.size[life] == 0:
            return {}
        pinned, others = timeline.pieces(int(np.clip(moment, 0, timeline.last))).pinned_by(life)
        return {**self.life(life), "pins": pinned, "pins_with": others, "moment": moment}

    def life(self, life: int) -> dict[str, Any]:
        """Return the part that does not depend on the moment."""
        lives, timeline = self.timeline.lives, self.timeline
        begin, freed, end = int(lives.begin[life]), int(lives.freed[life]), int(lives.end[life])
        return {
            "life": life,
            "address": f"{int(lives.address[life]):#x}",
            "size": int(lives.size[life]),
            "requested": int(lives.requested[life]),
            "stream": str(lives.stream[life]),  # a page's numbers have 53 bits
            "pool": list(timeline.pools[int(lives.pool[life])]),
            "begin": begin,
            "begin_entry": int(timeline.entries[begin]),
            "freed": freed if freed <= timeline.last else None,
            "freed_entry": int(timeline.entries[freed]) if freed <= timeline.last else None,
            "end": end if end <= timeline.last else None,
            "end_entry": int(timeline.entries[min(end, timeline.last)]),
            "was_there": begin == 0,
            "lived_us": self._time(min(end, timeline.last)) - self._time(begin),
            "place": int(timeline.axis.places(lives.address[life : life + 1])[0]),
            "stack": self.frames(int(timeline.stack_of[life])),
        }

    def frames(self, stack: int) -> list[list[Any]]:
        """Return function, file and line of a stack's frames, innermost first."""
        found = self.timeline.stacks[stack][:MOST_FRAMES] if stack >= 0 else ()
        return [[frame.name, frame.filename, frame.line] for frame in found]

    def _time(self, moment: int) -> int:
        return int(self.timeline.times[moment] - self.timeline.times[0])

    # --- a search ----------------------------------------------------------------------------------------------------

    def search(self, query: str, moment: int) -> dict[str, Any]:
        """Return the matches of a query: totals, and the largest blocks, those alive then first.

        Raises RequestError.
        """
        timeline, lives = self.timeline, self.timeline.lives
        found = np.flatnonzero(timeline.search(query))
        lives_now = (lives.begin[found] <= moment) & (lives.freed[found] > moment)
        order = np.lexsort((lives.begin[found], -lives.size[found], ~lives_now))[:MOST_LISTED]
        listed = []
        for i in order.tolist():
            life = int(found[i])
            stack = int(timeline.stack_of[life])
            listed.append(
                {
                    "life": life,
                    "size": int(lives.size[life]),
                    "begin": int(lives.begin[life]),
                    "begin_entry": int(timeline.entries[lives.begin[life]]),
                    "end": min(int(lives.end[life]), timeline.last),
                    "end_entry": int(timeline.entries[min(int(lives.end[life]), timeline.last)]),
                    "is_live": bool(lives_now[i]),
                    "line": line_of(timeline.stacks[stack]) if stack >= 0 else "",
                }
            )
        return {
            "query": query,
            "blocks": len(found),
            "live_blocks": int(np.count_nonzero(lives_now)),
            "live_bytes": int(lives.requested[found[lives_now]].sum()),
            "listed": listed,
        }
