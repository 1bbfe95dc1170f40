"""What a snapshot says of pinned memory: how much there was, who held it, and how much may be rounding."""

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
    """Pinned memory at the moment near its peak at which most was in use, and at the end."""

    entries: int
    """Of its history."""
    peak_bytes: int
    """The most that was pinned."""
    peak_entry: int
    """Of its history; -1 before the first."""
    in_use_bytes: int
    waiting_bytes: int
    """Freed, while a copy is under way."""
    cached_bytes: int
    rounding_bytes_at_most: int
    """What rounding to powers of two can have added; the snapshot has no sizes as requested."""
    end_bytes: int
    holders: list[Holder]
    """By line, of what was in use."""


def pinned_figures(snapshot: Snapshot) -> PinnedFigures | None:
    """The figures; None if PyTorch recorded no pinned memory. Raises FormatError for what cannot be memory."""
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
