"""Memory at a moment of a replay, whatever the placement.

For PyTorch's placement the engine reports its blocks. Dense placement has no sequence of adjacent blocks: there, the
lives of blocks and of chunks determine the state of memory.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState
from allotment.lab.replay.moment import Moment, peak_moment
from allotment.lab.replay.records import MOMENT_BLOCK
from allotment.lab.replay.run import Recording
from allotment.lab.timeline.lives import lives_of, units_of
from allotment.lab.timeline.pieces import AddressAxis, PieceState, pieces_at

__all__ = ["moment_of", "moment_of_peak"]

STATES = {
    PieceState.LIVE: BlockState.ACTIVE_ALLOCATED,
    PieceState.WAITING: BlockState.ACTIVE_PENDING_FREE,
    PieceState.FREE: BlockState.INACTIVE,
    PieceState.PINNED: BlockState.INACTIVE,
}


def moment_of(recording: Recording, calls: int, settings: str | None = None) -> Moment:
    """Return memory after the first `calls` calls: as recorded, or under other settings. Raises SettingsError."""
    if recording.resolved(settings).placement == "dense":
        return _from_lives(recording, calls, settings)
    return recording.moment(calls, settings)


def moment_of_peak(recording: Recording, settings: str | None, in_use: NDArray[np.int64]) -> tuple[int, Moment, int]:
    """Return the number of the peak's moment (see `peak_moment`), memory then, and the most that was reserved.

    `in_use` has the bytes in use at each moment. Raises SettingsError.
    """
    before = moment_of(recording, 0, settings)
    reserved = np.concatenate([[before.reserved], recording.curve(settings)[:, 1].astype(np.int64)])
    place = peak_moment(reserved, in_use)
    return place, moment_of(recording, place, settings) if place else before, int(reserved.max())


def _from_lives(recording: Recording, moment: int, settings: str | None) -> Moment:
    deeds = recording.deeds(settings)
    lives, units = lives_of(deeds, recording.calls), units_of(deeds.segments, len(recording.calls) + 1)
    alive = np.flatnonzero((lives.begin <= moment) & (lives.end > moment) & (lives.size > 0)).astype(np.int32)
    there = np.flatnonzero((units.begin <= moment) & (units.end > moment)).astype(np.int32)
    pieces = pieces_at(lives, units, AddressAxis(units), alive, there, moment)
    held = np.flatnonzero(pieces.state != PieceState.UNMAPPED)
    state, life = pieces.state[held], pieces.life[held]
    blocks = np.zeros(len(held), dtype=MOMENT_BLOCK)
    blocks["address"], blocks["size"] = pieces.address[held], pieces.size[held]
    for found, meant in STATES.items():
        blocks["state"][state == found] = meant
    is_live = state == PieceState.LIVE
    blocks["requested"][is_live] = lives.requested[life[is_live]]
    segment = pieces.segment[held]
    blocks["segment"] = pieces.segment_start[segment]
    unit = pieces.segment_unit[segment]
    blocks["stream"] = units.stream[unit]
    blocks["pool_first"], blocks["pool_second"] = units.pool_first[unit], units.pool_second[unit]
    blocks["releasable"] = np.where(state == PieceState.FREE, blocks["size"], 0)
    address_of_life = np.zeros(len(lives), dtype=np.uint64)
    address_of_life[life[is_live]] = blocks["address"][is_live]
    return Moment(blocks, address_of_life)
