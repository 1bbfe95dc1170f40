"""The lifetimes of blocks, and of memory from when it was obtained until it was released.

Time is counted in calls: *moment* t is when the first t calls have been made, so there is one more moment than there
are calls. A life that call i begins exists from moment i + 1 on; one that call i ends does not exist from moment i + 1
on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment.lab.replay.intervals import Intervals
from allotment.lab.replay.moment import Deeds
from allotment.lab.replay.records import Kind

__all__ = ["Lives", "Units", "lives_of", "units_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Lives:
    """One row for each block. Moments are as above; one more than the last means never."""

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    """0 for a request that got no memory."""
    requested: NDArray[np.int64]
    begin: NDArray[np.int32]
    freed: NDArray[np.int32]
    """When the user freed it."""
    end: NDArray[np.int32]
    """When it could be reused: later than `freed` if it waited for other streams."""
    stream: NDArray[np.uint64]
    pool: NDArray[np.int32]

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Units:
    """Memory in the units in which it can be released: plain segments, or pages of expandable ones.

    By address, then by time.
    """

    address: NDArray[np.uint64]
    size: NDArray[np.int64]
    begin: NDArray[np.int32]
    end: NDArray[np.int32]
    stream: NDArray[np.uint64]
    pool_first: NDArray[np.uint64]
    pool_second: NDArray[np.uint64]
    page: NDArray[np.int64]
    """0 for a plain segment."""

    def __len__(self) -> int:
        return len(self.address)


def lives_of(deeds: Deeds, calls: NDArray[np.void]) -> Lives:
    """Return the lives of a replay that made these calls."""
    count, moments = len(deeds.address), len(calls) + 1
    requested = np.zeros(count, dtype=np.int64)
    stream = np.zeros(count, dtype=np.uint64)
    pool = np.zeros(count, dtype=np.int32)
    kind = calls["kind"]
    for part in (deeds.requests, calls[(kind == Kind.MALLOC) & (calls["block"] >= 0)]):
        block = part["block"]
        requested[block], stream[block], pool[block] = part["size"], part["stream"], part["pool"]
    was_placed = deeds.size > 0
    begin = np.where(was_placed, deeds.placed_by + np.int32(1), np.int32(moments))
    freed = np.full(count, moments, dtype=np.int32)
    freed[deeds.waiting["block"]] = 0
    at_once = np.flatnonzero(kind == Kind.FREE)
    freed[calls["block"][at_once]] = at_once + 1
    end = freed.copy()
    late = np.flatnonzero(kind == Kind.FREE_SHARED)
    freed[calls["block"][late]] = late + 1
    waited = np.concatenate([deeds.waiting["block"], calls["block"][late]])
    waited = waited[was_placed[waited]]
    end[waited] = _completed(deeds, waited, freed[waited], moments)
    freed[~was_placed] = end[~was_placed] = moments
    return Lives(
        address=deeds.address,
        size=deeds.size.astype(np.int64),
        requested=np.where(was_placed, requested, 0),
        begin=begin.astype(np.int32),
        freed=freed,
        end=end,
        stream=stream,
        pool=pool,
    )


def _completed(deeds: Deeds, lives: NDArray[np.int32], freed: NDArray[np.int32], never: int) -> NDArray[np.int32]:
    """Return when frees that waited completed: at the next completion of the same address."""
    late = deeds.late_frees
    known, place = np.unique(late["address"], return_inverse=True)
    if len(known) == 0:
        return np.full(len(lives), never, dtype=np.int32)
    moments = late["call"].astype(np.int64) + 1
    keys = np.sort((place.astype(np.int64) << 32) + moments)
    rank = np.minimum(np.searchsorted(known, deeds.address[lives]), len(known) - 1)
    wanted = (rank.astype(np.int64) << 32) + freed
    found = keys[np.minimum(np.searchsorted(keys, wanted), len(keys) - 1)]
    is_found = (known[rank] == deeds.address[lives]) & (found >> 32 == rank) & (found >= wanted)
    return np.where(is_found, found & 0xFFFFFFFF, never).astype(np.int32)


def units_of(segments: NDArray[np.void], moments: int) -> Units:
    """Return the memory that segment events describe; `moments` is one more than the last."""
    memory = _Memory(moments)
    names = ("address", "size", "stream", "pool_first", "pool_second", "page", "call", "obtained")
    for address, size, stream, first, second, page, call, obtained in zip(
        *(segments[name].tolist() for name in names), strict=True
    ):
        if not obtained:
            memory.release(address, address + size, call + 1)
            continue
        for start in range(address, address + size, page or size):
            memory.obtain(start, min(start + (page or size), address + size), call + 1, (stream, first, second, page))
    rows = sorted(row for row in memory.rows if row[2] < row[3])
    columns = list(zip(*rows, strict=True)) if rows else [()] * 8
    kinds = (np.uint64, np.int64, np.int32, np.int32, np.uint64, np.uint64, np.uint64, np.int64)
    return Units(*(np.array(column, dtype=kind) for column, kind in zip(columns, kinds, strict=True)))


class _Memory:
    """Memory as it is obtained and released. Dense placement moves parts of a unit: what remains becomes a new unit."""

    def __init__(self, moments: int) -> None:
        self.rows: list[list[int]] = []
        self._moments = moments
        self._held: Intervals[int] = Intervals()

    def obtain(self, start: int, end: int, moment: int, about: Sequence[int]) -> None:
        self.release(start, end, moment)
        self._put(start, end, moment, about)

    def _put(self, start: int, end: int, moment: int, about: Sequence[int]) -> None:
        self._held.put(start, end, len(self.rows))
        self.rows.append([start, end - start, moment, self._moments, *about])

    def release(self, start: int, end: int, moment: int) -> None:
        for number in dict.fromkeys(number for _, _, number in self._held.clear(start, end)):
            row = self.rows[number]
            row[3] = moment
            for left, right in ((row[0], start), (end, row[0] + row[1])):
                if left < right:
                    self._put(left, right, moment, row[4:])
