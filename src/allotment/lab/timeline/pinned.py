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
        walk.add(entry, action, address, address + size, stack, (first, second))
    _add_final_state(walk, snapshot)
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


def _add_final_state(walk: _Walk, snapshot: Snapshot) -> None:
    """Add what exists at the snapshot's end and has no entry in the history."""
    segments, blocks = snapshot.segments, snapshot.blocks
    pools = list(zip(segments.pool_first.tolist(), segments.pool_second.tolist(), strict=True))
    for address, size, pool in zip(segments.address.tolist(), segments.total_size.tolist(), pools, strict=True):
        walk.add_final_segment(address, address + size, pool)
    columns = (blocks.segment, blocks.address, blocks.size, blocks.state, blocks.stack)
    for segment, address, size, state, stack in zip(*(column.tolist() for column in columns), strict=True):
        if state in _ACTIVE:
            walk.add_final_block(address, address + size, stack, pools[segment])


class _Walk:
    """Segments and blocks while the entries create and end them.

    An entry leads to one moment, or to several if several blocks begin or end with it: one for each block.
    """

    def __init__(self) -> None:
        self.entries = [-1]
        """By moment: the entry that led to it."""
        self.pools: dict[Pool, int] = {(0, 0): 0}
        self.stacks: list[int] = []
        self._is_used = False
        self._segments: list[list[int]] = []
        self._held: Intervals[int] = Intervals()
        self._ever_held: Intervals[bool] = Intervals()
        self._blocks: list[list[int]] = []
        self._live: Intervals[int] = Intervals()
        self._ever_live: Intervals[bool] = Intervals()

    @property
    def _now(self) -> int:
        return len(self.entries) - 1

    def _next_moment(self) -> int:
        """Return the moment for the next block that begins or ends."""
        if self._is_used or self._now == 0:
            self.entries.append(self.entries[-1])
        self._is_used = True
        return self._now

    def add(self, entry: int, action: int, start: int, end: int, stack: int, pool: Pool) -> None:
        """Process an entry of the history."""
        self.entries.append(entry)
        self._is_used = False
        if action in (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE):
            self._end_segments(start, end)
            if action == Action.SEGMENT_ALLOC:
                self._add_segment(start, end, self._now, pool)
        elif action == Action.ALLOC:
            self._ensure_segment(start, end, pool)
            self._end_blocks(start, end)
            self._begin_block(start, end, self._next_moment(), stack, pool)
        elif action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
            block = self._blocks[self._find_block(start, end, stack, pool)]
            if block[3] == NEVER:
                block[3] = self._next_moment()
            if action == Action.FREE_COMPLETED:
                self._end_blocks(block[0], block[0] + block[1])

    def add_final_segment(self, start: int, end: int, pool: Pool) -> None:
        """Add a segment that exists at the end; ignored if the history contradicts it."""
        if self._held.first_in(start, end) is None:
            self._ensure_segment(start, end, pool)

    def add_final_block(self, start: int, end: int, stack: int, pool: Pool) -> None:
        """Add a block that exists at the end; ignored if the history contradicts it."""
        if self._live.first_in(start, end) is None and self._is_in_one_segment(start, end):
            self._find_block(start, end, stack, pool)

    def _is_in_one_segment(self, start: int, end: int) -> bool:
        number = self._held.at(start)
        return number is not None and self._segments[number][0] + self._segments[number][1] >= end

    def _ensure_segment(self, start: int, end: int, pool: Pool) -> bool:
        """Make sure that a segment contains this memory; return whether it may have existed from the beginning."""
        if self._is_in_one_segment(start, end):
            return self._segments[self._held.at(start) or 0][2] == 0
        was_there = self._ever_held.first_in(start, end) is None
        self._end_segments(start, end)
        self._add_segment(start, end, 0 if was_there else self._now, pool)
        return was_there

    def _find_block(self, start: int, end: int, stack: int, pool: Pool) -> int:
        """Return the number of the block that begins there, whatever its size; creates one if there is none."""
        number = self._live.at(start)
        if number is not None and self._blocks[number][0] == start:
            return number
        was_there = self._ensure_segment(start, end, pool) and self._ever_live.first_in(start, end) is None
        self._end_blocks(start, end)
        return self._begin_block(start, end, 0 if was_there else self._next_moment(), stack, pool)

    def _add_segment(self, start: int, end: int, moment: int, pool: Pool) -> None:
        self._held.put(start, end, len(self._segments))
        self._ever_held.put(start, end, True)
        self._segments.append([start, end - start, moment, NEVER, *pool])

    def _end_segments(self, start: int, end: int) -> None:
        """End all segments that overlap these addresses."""
        for number in dict.fromkeys(number for _, _, number in self._held.clear(start, end)):
            row = self._segments[number]
            self._held.clear(row[0], row[0] + row[1])
            self._end_blocks(row[0], row[0] + row[1])
            row[3] = self._now

    def _begin_block(self, start: int, end: int, moment: int, stack: int, pool: Pool) -> int:
        number = len(self._blocks)
        self._live.put(start, end, number)
        self._ever_live.put(start, end, True)
        self._blocks.append([start, end - start, moment, NEVER, NEVER, self.pools.setdefault(pool, len(self.pools))])
        self.stacks.append(stack)
        return number

    def _end_blocks(self, start: int, end: int) -> None:
        """End all blocks that overlap these addresses."""
        for number in dict.fromkeys(number for _, _, number in self._live.clear(start, end)):
            block = self._blocks[number]
            self._live.clear(block[0], block[0] + block[1])
            if block[3] == NEVER:
                block[3] = self._next_moment()
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
