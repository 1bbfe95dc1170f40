"""Memory that is held and not in use, by cause. The causes add up to the total exactly."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np

from allotment._core.edge.words import BlockState
from allotment.lab.replay.moment import Moment

__all__ = ["Waste", "waste_at"]


@dataclass(frozen=True, slots=True)
class Waste:
    """Bytes by cause."""

    rounding: int
    """Blocks in use are larger than requested."""
    pieces: int
    """Free for the request, but beside blocks in use, and not large enough."""
    other_streams: int
    """Free, for requests on other streams."""
    private_pools: int
    """Free, in other pools."""
    waiting: int
    """Freed by the user, but other streams may still use it."""
    unreleased: int
    """Free for the request, and could be released to the device."""

    @property
    def total(self) -> int:
        """Reserved bytes less the requested bytes in use."""
        return sum(int(getattr(self, field.name)) for field in fields(self))


def waste_at(moment: Moment, stream: int | None, pool: tuple[int, int]) -> Waste:
    """Return the waste at a moment, from the point of view of a request on this stream, for this pool.

    `stream` None: free memory serves all streams.
    """
    used = moment.having(BlockState.ACTIVE_ALLOCATED)
    waiting = moment.having(BlockState.ACTIVE_PENDING_FREE)
    free = moment.having(BlockState.INACTIVE)
    in_pool = (free["pool_first"] == pool[0]) & (free["pool_second"] == pool[1])
    on_stream = (free["stream"] == stream) | (stream is None)
    reachable = free[in_pool & on_stream]
    return Waste(
        rounding=int(used["size"].sum() - used["requested"].sum()),
        pieces=int(reachable["size"].sum() - reachable["releasable"].sum()),
        other_streams=int(free["size"][in_pool & ~on_stream].sum()),
        private_pools=int(free["size"][np.logical_not(in_pool)].sum()),
        waiting=int(waiting["size"].sum()),
        unreleased=int(reachable["releasable"].sum()),
    )
