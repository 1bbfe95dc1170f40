"""What a snapshot records about pinned memory: how much there was, which code held it, and how much may be rounding."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.explain.holders import Holder, holders, lines_of
from allotment.lab.timeline.pieces import PieceState
from allotment.lab.timeline.pinned import timeline_of_pinned

__all__ = ["PinnedFigures", "pinned_figures"]


@dataclass(frozen=True, slots=True)
class PinnedFigures:
    """Pinned memory at the end, and at the moment near its peak at which most was in use."""

    entries: int
    """Length of the history of pinned memory."""
    peak_bytes: int
    """The most that was pinned."""
    peak_entry: int
    """Index in that history; -1 for a moment before the first entry."""
    in_use_bytes: int
    waiting_bytes: int
    """Freed by the user, while a copy still uses it."""
    cached_bytes: int
    rounding_bytes_at_most: int
    """The most that rounding to powers of two can have added; the snapshot does not contain the requested sizes."""
    end_bytes: int
    holders: list[Holder]
    """By the line of code that held the memory in use."""


def pinned_figures(snapshot: Snapshot) -> PinnedFigures | None:
    """Return the figures; None if PyTorch recorded no pinned memory. Raises FormatError for what cannot be memory."""
    if snapshot.pinned is None:
        return None
    timeline = timeline_of_pinned(snapshot.pinned)
    moment, peak = timeline.peak_reserved
    pieces = timeline.pieces(moment)
    lives = pieces.life[pieces.state == PieceState.LIVE]
    sizes = timeline.lives.size[lives]
    in_use, waiting = pieces.bytes_in(PieceState.LIVE), pieces.bytes_in(PieceState.WAITING)
    is_rounded = (sizes & (sizes - 1)) == 0
    return PinnedFigures(
        entries=len(snapshot.pinned.traces[0]),
        peak_bytes=peak,
        peak_entry=int(timeline.entries[moment]),
        in_use_bytes=in_use,
        waiting_bytes=waiting,
        cached_bytes=timeline.reserved_at(moment) - in_use - waiting,
        rounding_bytes_at_most=int(np.where(is_rounded, (sizes - 1) // 2, 0).sum()),
        end_bytes=timeline.reserved_at(timeline.last),
        holders=holders(
            lines_of(snapshot.stacks, timeline.stack_of[lives].tolist()), sizes, np.zeros(len(sizes), dtype=np.int64)
        ),
    )
