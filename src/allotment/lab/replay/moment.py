"""Memory at one moment of a recorded history, and what a replay did from its first moment to its last."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState

__all__ = ["Deeds", "Moment", "peak_moment"]

NEAR_PEAK = 0.01
"""How far below the peak of reserved memory still counts as the peak, as a fraction of it."""


def peak_moment(reserved: NDArray[np.number], in_use: NDArray[np.number]) -> int:
    """Return the moment to show for the peak of reserved memory: of those near the peak, the first with most in use.

    A cache keeps its memory, so the peak is a plateau, and little may be in use where it begins or ends.
    """
    near = reserved >= (1 - NEAR_PEAK) * int(reserved.max())
    return int(np.argmax(np.where(near, in_use, -1)))


@dataclass(frozen=True, slots=True, eq=False)
class Moment:
    """Memory after some of a workload's calls, as recorded."""

    blocks: NDArray[np.void]
    """`MOMENT_BLOCK` records of all mapped blocks, by address."""
    address_of_life: NDArray[np.uint64]
    """By life: where its block is; 0 if it is not in use."""

    @property
    def reserved(self) -> int:
        """Bytes reserved from the device."""
        return int(self.blocks["size"].sum())

    @property
    def requested(self) -> int:
        """Requested bytes of blocks in use."""
        return int(self.blocks["requested"].sum())

    def having(self, *states: BlockState) -> NDArray[np.void]:
        """The blocks in one of these states."""
        return self.blocks[np.isin(self.blocks["state"], states)]

    @property
    def live(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """The lives of the blocks in use, and where these are in `blocks`."""
        lives = np.flatnonzero(self.address_of_life)
        return lives, np.searchsorted(self.blocks["address"], self.address_of_life[lives])

    @property
    def pinned(self) -> NDArray[np.int64]:
        """By block: the free bytes next to it in its segment that it keeps from being released.

        The blocks in use on both sides of a free piece keep half of it each; at an edge, one block keeps all of it.
        """
        blocks, count = self.blocks, len(self.blocks)
        place = np.arange(count)
        used = blocks["state"] == BlockState.ACTIVE_ALLOCATED
        before = np.maximum.accumulate(np.where(used, place, -1))
        after = np.minimum.accumulate(np.where(used, place, count)[::-1])[::-1]
        free = np.flatnonzero(blocks["state"] == BlockState.INACTIVE)
        kept = (blocks["size"][free] - blocks["releasable"][free]).astype(np.int64)
        left, right = before[free], np.minimum(after[free], count - 1)
        segment = blocks["segment"]
        has_left = (left >= 0) & (segment[left] == segment[free])
        has_right = (after[free] < count) & (segment[right] == segment[free])
        to_left = np.where(has_left, np.where(has_right, kept // 2, kept), 0)
        to_right = np.where(has_right, kept - to_left, 0)
        pinned = np.zeros(count, dtype=np.int64)
        np.add.at(pinned, left[has_left], to_left[has_left])
        np.add.at(pinned, right[has_right], to_right[has_right])
        return pinned


@dataclass(frozen=True, slots=True, eq=False)
class Deeds:
    """The effects of a replay that do not follow from its calls; see journal.pxd."""

    requests: NDArray[np.void]
    """`CALL` records of the blocks that existed before the history."""
    waiting: NDArray[np.void]
    """`CALL` records of frees that were requested before the history."""
    address: NDArray[np.uint64]
    """By life."""
    size: NDArray[np.uint64]
    """By life; 0 if it never got memory."""
    placed_by: NDArray[np.int32]
    """By life: the call, or -1 before the history."""
    segments: NDArray[np.void]
    """`SEGMENT_EVENT` records in order."""
    late_frees: NDArray[np.void]
    """`LATE_FREE` records in order."""
    matches_recording: bool | None
    """Whether every recorded decision was reproduced; None if unknown, with the `reason`."""
    reason: str | None
    ooms: int
    retries: int
    driver_ms: float
