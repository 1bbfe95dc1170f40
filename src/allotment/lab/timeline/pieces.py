"""The state of every piece of memory at one moment; the pieces tile all addresses that ever had memory.

    | live | pinned |  live  | pin|   free   |ned | live |   unmapped   | ...
    |-------- page --------|-- page --|-- page --|- page -|

Free memory can be released only in whole units: plain segments, or pages of expandable ones. A live block *pins* the
free memory of its unit; the rest could be released.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from allotment.lab.timeline.lives import Lives, Units

__all__ = ["AddressAxis", "PieceState", "Pieces", "pieces_at"]

_NEAR, _FAR = np.uint64(0), np.uint64((1 << 64) - 1)


class PieceState(IntEnum):
    """The state of a piece of memory."""

    LIVE = 0
    WAITING = 1
    """Freed by the user; other streams may still use it."""
    FREE = 2
    """Could be released to the device."""
    PINNED = 3
    """Free, and kept by a live block in its segment or page."""
    UNMAPPED = 4
    """Addresses without memory."""


@dataclass(frozen=True, slots=True, eq=False)
class Pieces:
    """By address, adjacent."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    state: NDArray[np.uint8]
    life: NDArray[np.int32]
    """-1 if the piece is not a block."""
    segment: NDArray[np.int32]
    """The run of memory that holds it; -1 for unmapped addresses."""
    segment_start: NDArray[np.uint64]
    """By segment."""
    segment_end: NDArray[np.uint64]
    segment_page: NDArray[np.int64]
    segment_unit: NDArray[np.int32]
    """By segment: its first unit, which has the stream and the pool."""
    unit_start: NDArray[np.uint64]
    """By existing unit."""
    unit_end: NDArray[np.uint64]

    def bytes_in(self, *states: PieceState) -> int:
        """Return the bytes in one of these states."""
        return int(self.size[np.isin(self.state, states)].sum())

    def pinned_by(self, life: int) -> tuple[int, int]:
        """Return the free bytes that a block keeps from being released, and how many other blocks keep them too."""
        place = np.flatnonzero(self.life == life)
        if len(place) == 0:
            return 0, 0
        first = self.address[place[0]]
        last = first + np.uint64(self.size[place[0]])
        start = self.unit_start[np.searchsorted(self.unit_start, first, "right") - 1]
        end = self.unit_end[np.searchsorted(self.unit_end, last, "left")]
        begins = np.maximum(self.address, start)
        ends = np.minimum(self.address + self.size.astype(np.uint64), end)
        inside = np.where(ends > begins, ends - begins, 0).astype(np.int64)
        pinned = int(inside[self.state == PieceState.PINNED].sum())
        others = int(np.count_nonzero((inside > 0) & (self.life >= 0))) - 1
        return pinned, others


class AddressAxis:
    """All addresses that ever had memory, side by side: an address has the same place at every moment."""

    def __init__(self, units: Units) -> None:
        ends = units.address + units.size.astype(np.uint64)
        furthest = np.maximum.accumulate(ends) if len(ends) else ends
        begins = np.ones(len(ends), dtype=bool)
        begins[1:] = units.address[1:] > furthest[:-1]
        self.starts = units.address[begins]
        self.ends = furthest[np.append(begins[1:], True)] if len(ends) else ends
        lengths = (self.ends - self.starts).astype(np.int64)
        self.offsets = np.cumsum(lengths) - lengths
        self.length = int(lengths.sum())

    def places(self, addresses: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Return the places of addresses."""
        run = np.maximum(np.searchsorted(self.starts, addresses, "right") - 1, 0)
        return np.asarray(self.offsets[run] + (addresses - self.starts[run]).astype(np.int64))


def pieces_at(
    lives: Lives,
    units: Units,
    axis: AddressAxis,
    alive: NDArray[np.int32],
    mapped: NDArray[np.int32],
    moment: int,
) -> Pieces:
    """Return the pieces at a moment with these lives and units; the units by address."""
    unit_start = units.address[mapped]
    unit_end = unit_start + units.size[mapped].astype(np.uint64)
    begins = _begins_segment(unit_start, unit_end, units.page[mapped])
    start, end = unit_start[begins], unit_end[np.append(begins[1:], True)] if len(mapped) else unit_end
    block = alive[np.argsort(lives.address[alive], kind="stable")]
    block_start = lives.address[block]
    block_end = block_start + lives.size[block].astype(np.uint64)
    gap_start, gap_end, gap_run = _between(start, end, block_start, block_end)
    # The first unit that begins in a gap, and the last one that ends there: everything between them could be released.
    whole_start = np.minimum(np.append(unit_start, _FAR)[np.searchsorted(unit_start, gap_start)], gap_end)
    whole_end = np.maximum(np.append(_NEAR, unit_end)[np.searchsorted(unit_end, gap_end, "right")], whole_start)
    hole_start, hole_end, _ = _between(axis.starts, axis.ends, start, end)
    nothing = np.full(len(hole_start), -1, dtype=np.int64)
    waits = lives.freed[block] <= moment
    parts = [
        (block_start, block_end, np.where(waits, PieceState.WAITING, PieceState.LIVE), _run_of(start, block_start)),
        (gap_start, whole_start, np.full(len(gap_start), PieceState.PINNED), gap_run),
        (whole_start, whole_end, np.full(len(gap_start), PieceState.FREE), gap_run),
        (whole_end, gap_end, np.full(len(gap_start), PieceState.PINNED), gap_run),
        (hole_start, hole_end, np.full(len(hole_start), PieceState.UNMAPPED), nothing),
    ]
    starts, ends, state, run = (np.concatenate([part[i] for part in parts]) for i in range(4))
    life = np.full(len(starts), -1, dtype=np.int32)
    life[: len(block)] = block
    order = np.flatnonzero(ends > starts)
    order = order[np.argsort(starts[order], kind="stable")]
    return Pieces(
        address=starts[order],
        size=(ends - starts)[order].astype(np.int64),
        state=state[order].astype(np.uint8),
        life=life[order],
        segment=run[order].astype(np.int32),
        segment_start=start,
        segment_end=end,
        segment_page=units.page[mapped][begins],
        segment_unit=mapped[begins],
        unit_start=unit_start,
        unit_end=unit_end,
    )


def _begins_segment(start: NDArray[np.uint64], end: NDArray[np.uint64], page: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Whether a unit is a plain segment, or the first of pages that stand side by side."""
    begins = np.ones(len(start), dtype=bool)
    begins[1:] = (page[1:] == 0) | (page[:-1] == 0) | (start[1:] != end[:-1])
    return begins


def _run_of(starts: NDArray[np.uint64], points: NDArray[np.uint64]) -> NDArray[np.int64]:
    return np.searchsorted(starts, points, "right") - 1


def _between(
    outer_start: NDArray[np.uint64],
    outer_end: NDArray[np.uint64],
    inner_start: NDArray[np.uint64],
    inner_end: NDArray[np.uint64],
) -> tuple[NDArray[np.uint64], NDArray[np.uint64], NDArray[np.int64]]:
    """Return the parts of outer intervals that no inner one covers, and the outer one of each. All are in order."""
    inside = _run_of(outer_start, inner_start)
    starts = np.concatenate([outer_start, inner_end])
    outer = np.concatenate([np.arange(len(outer_start)), inside])
    following = np.concatenate([np.searchsorted(inner_start, outer_start), np.arange(len(inner_start)) + 1])
    padded_start = np.append(inner_start, np.uint64(0))
    padded_inside = np.append(inside, -1)
    ends = np.where(padded_inside[following] == outer, padded_start[following], outer_end[outer])
    found = np.flatnonzero(ends > starts)
    return starts[found], ends[found], outer[found]
