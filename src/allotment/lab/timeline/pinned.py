"""Pinned memory over time, as a snapshot recorded it. No replay is needed, since no device divides this memory.

Parts of a history may be lost, and the file is untrusted. So an entry that contradicts earlier ones wins: all segments
and blocks that share addresses with it end. Hence segments never overlap, and each block lies in one of them. Memory
whose first entry is its end existed from the beginning.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action, BlockState
from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.replay.gate import check_snapshot
from allotment.lab.replay.intervals import Intervals
from allotment.lab.timeline.lives import Lives, Units
from allotment.lab.timeline.timeline import Timeline

__all__ = ["timeline_of_pinned"]

_ACTIVE = (BlockState.ACTIVE_ALLOCATED, BlockState.ACTIVE_PENDING_FREE)
Pool = tuple[int, int]
NEVER = 1 << 62


def timeline_of_pinned(snapshot: Snapshot) -> Timeline:
    """Return the timeline of a snapshot's `pinned` part. Raises FormatError for what cannot be memory."""
    trace = snapshot.traces[0]
    check_snapshot(snapshot, trace)
    walk = _Walk()
    columns = (trace.action, trace.address, trace.size, trace.stack, trace.pool_first, trace.pool_second)
    for entry, (action, address, size, stack, first, second) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        walk.take(entry, action, address, address + size, stack, (first, second))
    _take_end(walk, snapshot)
    entries = np.array(walk.entries, dtype=np.int64)
    times = trace.time_us[np.maximum(entries, 0)] if len(trace) else np.zeros(len(entries), dtype=np.int64)
    return Timeline(
        walk.lives(),
        walk.units(),
        last=len(entries) - 1,
        stacks=snapshot.stacks,
        stack_of=np.array(walk.stacks, dtype=np.int32),
        pools=list(walk.pools),
        entries=entries,
        times=np.maximum.accumulate(times),
        marks=[],
    )


def _take_end(walk: _Walk, snapshot: Snapshot) -> None:
    """Add what exists at the snapshot's end and has no entry in the history."""
    segments, blocks = snapshot.segments, snapshot.blocks
    pools = list(zip(segments.pool_first.tolist(), segments.pool_second.tolist(), strict=True))
    for address, size, pool in zip(segments.address.tolist(), segments.total_size.tolist(), pools, strict=True):
        walk.take_end(address, address + size, pool)
    columns = (blocks.segment, blocks.address, blocks.size, blocks.state, blocks.stack)
    for segment, address, size, state, stack in zip(*(column.tolist() for column in columns), strict=True):
        if state in _ACTIVE:
            walk.take_block_at_end(address, address + size, stack, pools[segment])


class _Walk:
    """Segments and blocks while the entries create and end them.

    An entry leads to one moment, or to several if several blocks begin or end with it: one for each block.
    """

    def __init__(self) -> None:
        self.entries = [-1]
        """By moment: the entry that led to it."""
        self.pools: dict[Pool, int] = {(0, 0): 0}
        self.stacks: list[int] = []
        self._is_told = False
        self._segments: list[list[int]] = []
        self._held: Intervals[int] = Intervals()
        self._ever_held: Intervals[bool] = Intervals()
        self._blocks: list[list[int]] = []
        self._there: Intervals[int] = Intervals()
        self._ever_there: Intervals[bool] = Intervals()

    @property
    def _now(self) -> int:
        return len(self.entries) - 1

    def _tell(self) -> int:
        """Return the moment for the next block that begins or ends."""
        if self._is_told or self._now == 0:
            self.entries.append(self.entries[-1])
        self._is_told = True
        return self._now

    def take(self, entry: int, action: int, start: int, end: int, stack: int, pool: Pool) -> None:
        """Process an entry of the history."""
        self.entries.append(entry)
        self._is_told = False
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE):
            self._go(start, end)
            if action == Action.SEGMENT_ALLOC:
                self._come(start, end, self._now, pool)
        elif action == Action.ALLOC:
            self._hold(start, end, pool)
            self._end(start, end)
            self._begin(start, end, self._tell(), stack, pool)
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            block = self._blocks[self._find(start, end, stack, pool)]
            if block[3] == NEVER:
                block[3] = self._tell()
            if action == Action.FREE_COMPLETED:
                self._end(block[0], block[0] + block[1])

    def take_end(self, start: int, end: int, pool: Pool) -> None:
        """Add a segment that exists at the end; ignored if the history contradicts it."""
        if self._held.first_in(start, end) is None:
            self._hold(start, end, pool)

    def take_block_at_end(self, start: int, end: int, stack: int, pool: Pool) -> None:
        """Add a block that exists at the end; ignored if the history contradicts it."""
        if self._there.first_in(start, end) is None and self._is_in_one_segment(start, end):
            self._find(start, end, stack, pool)

    def _is_in_one_segment(self, start: int, end: int) -> bool:
        number = self._held.at(start)
        return number is not None and self._segments[number][0] + self._segments[number][1] >= end

    def _hold(self, start: int, end: int, pool: Pool) -> bool:
        """Make sure that a segment contains this memory; return whether it may have existed from the beginning."""
        if self._is_in_one_segment(start, end):
            return self._segments[self._held.at(start) or 0][2] == 0
        was_there = self._ever_held.first_in(start, end) is None
        self._go(start, end)
        self._come(start, end, 0 if was_there else self._now, pool)
        return was_there

    def _find(self, start: int, end: int, stack: int, pool: Pool) -> int:
        """Return the number of the block that begins there, whatever its size; creates one if there is none."""
        number = self._there.at(start)
        if number is not None and self._blocks[number][0] == start:
            return number
        was_there = self._hold(start, end, pool) and self._ever_there.first_in(start, end) is None
        self._end(start, end)
        return self._begin(start, end, 0 if was_there else self._tell(), stack, pool)

    def _come(self, start: int, end: int, moment: int, pool: Pool) -> None:
        self._held.put(start, end, len(self._segments))
        self._ever_held.put(start, end, True)
        self._segments.append([start, end - start, moment, NEVER, *pool])

    def _go(self, start: int, end: int) -> None:
        """End all segments that overlap these addresses."""
        for number in dict.fromkeys(number for _, _, number in self._held.clear(start, end)):
            row = self._segments[number]
            self._held.clear(row[0], row[0] + row[1])
            self._end(row[0], row[0] + row[1])
            row[3] = self._now

    def _begin(self, start: int, end: int, moment: int, stack: int, pool: Pool) -> int:
        number = len(self._blocks)
        self._there.put(start, end, number)
        self._ever_there.put(start, end, True)
        self._blocks.append([start, end - start, moment, NEVER, NEVER, self.pools.setdefault(pool, len(self.pools))])
        self.stacks.append(stack)
        return number

    def _end(self, start: int, end: int) -> None:
        """End all blocks that overlap these addresses."""
        for number in dict.fromkeys(number for _, _, number in self._there.clear(start, end)):
            block = self._blocks[number]
            self._there.clear(block[0], block[0] + block[1])
            if block[3] == NEVER:
                block[3] = self._tell()
            block[4] = self._now

    def lives(self) -> Lives:
        """Return the blocks, in order of their first entry."""
        address, size, begin, freed, end, pool = _columns(self._blocks, self._now)
        return Lives(
            address=address.astype(np.uint64),
            size=size,
            requested=size,
            begin=begin.astype(np.int32),
            freed=freed.astype(np.int32),
            end=end.astype(np.int32),
            stream=np.zeros(len(size), dtype=np.uint64),
            pool=pool.astype(np.int32),
        )

    def units(self) -> Units:
        """Return the segments."""
        rows = sorted(row for row in self._segments if row[2] < row[3])
        address, size, begin, end, first, second = _columns(rows, self._now)
        return Units(
            address=address.astype(np.uint64),
            size=size,
            begin=begin.astype(np.int32),
            end=end.astype(np.int32),
            stream=np.zeros(len(size), dtype=np.uint64),
            pool_first=first.astype(np.uint64),
            pool_second=second.astype(np.uint64),
            page=np.zeros(len(size), dtype=np.int64),
        )


def _columns(rows: list[list[int]], last: int) -> list[NDArray[np.int64]]:
    """Return the rows as columns. What never ends gets an end one moment after the last."""
    columns = list(zip(*rows, strict=True)) if rows else [()] * 6
    found = [np.array(column, dtype=np.uint64).astype(np.int64) for column in columns]
    return [np.where(column == NEVER, last + 1, column) if place in (3, 4) else column for place, column in
            enumerate(found)]  # fmt: skip
