"""The segments of a history over time, and the pool of each.

Most trace entries do not name their pool. A segment that still exists at the end has its pool in the snapshot; a
released one is assumed to be of the default pool until that contradicts the recording (see `Recording` in `run.py`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action, SegmentType
from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.replay.intervals import Intervals, SortedKeys
from allotment.lab.replay.workload import History

__all__ = ["SegmentLife", "SegmentTimeline"]

SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP = range(Action.SEGMENT_ALLOC, Action.SEGMENT_UNMAP + 1)
"""As plain numbers: a member of an enum is slow to look up."""
PAGE = 2 << 20
"""Every page of expandable memory is a multiple of this."""
LARGE_PAGE = 20 << 20
FAR = 8 << 30
"""Mapped pages further apart than this belong to different ranges."""


@dataclass(slots=True)
class SegmentLife:
    """A segment from its allocation to its release; for expandable memory, the whole range."""

    address: int
    size: int
    """For a range: the end of all pages that were ever mapped."""
    stream: int
    begin: int
    """The entry that allocated it; -1 if it existed before."""
    end: int
    """The entry that released the last part of it; the number of entries if none did."""
    expandable: bool = False
    small: bool = False
    pool: int = 0
    certain: bool = False
    """Whether the pool is known, and not only assumed."""
    mapped: int = 0
    """For a range: how many pages are mapped at the current entry."""
    first_pages: Intervals[bool] | None = None
    """For a range that existed before: the pages mapped then."""
    first_end: int = 0
    """For a range that existed before: the end of the last of these pages."""

    @property
    def size_at_first(self) -> int:
        """For a segment that existed before: its end at that time."""
        return self.first_end - self.address if self.expandable else self.size


class SegmentTimeline:
    """The segments of one device over time. `pool_ids` numbers the pools; number 0 is the default one."""

    def __init__(self, history: History, snapshot: Snapshot, device: int) -> None:
        self.history = history
        self.pool_ids: list[tuple[int, int]] = [(0, 0)]
        self._pool_numbers = {(0, 0): 0}
        self.lives: list[SegmentLife] = []
        self._last_request: dict[int, int] = {}
        self.of_entry = np.full(len(history), -1, dtype=np.int32)
        """By entry of a segment: its life."""
        self._final = _FinalSegments(snapshot, device)
        self._walk()
        self._read_pools()

    def pool_number(self, pool_id: tuple[int, int]) -> int:
        number = self._pool_numbers.setdefault(pool_id, len(self.pool_ids))
        if number == len(self.pool_ids):
            self.pool_ids.append(pool_id)
        return number

    @property
    def has_private_pools(self) -> bool:
        return any(life.pool != 0 for life in self.lives)

    # --- processing the history -----------------------------------------------------------------------------

    def _walk(self) -> None:
        history = self.history
        entries = np.flatnonzero((history.action >= SEGMENT_ALLOC) & (history.action <= SEGMENT_UNMAP))
        plain: dict[int, int] = {}
        ranges = _Ranges(self.lives)
        self._ranges_at_first(entries, ranges)
        for entry, action, address, size, stream in self._columns(entries):
            if action == SEGMENT_ALLOC:
                plain[address] = number = self._new(SegmentLife(address, size, stream, entry, len(history)))
            elif action == SEGMENT_FREE:
                number = plain.pop(address, -1)
                if number < 0:
                    number = self._new(SegmentLife(address, size, stream, -1, len(history)))
                self.lives[number].end = entry
            elif action == SEGMENT_MAP:
                number = self._map(ranges, address, size, stream, entry)
            else:
                number = ranges.unmap(address, size, entry)
            self.of_entry[entry] = number
        for segment in self._final.plain:
            if segment.address not in plain:
                segment.end = len(history)
                plain[segment.address] = self._new(segment)
            found = self.lives[plain[segment.address]]
            found.pool = self.pool_number(self._final.pool_at(segment.address))
            found.certain, found.small = True, segment.small
        for start, end, (_, _, pool) in self._final.pages:
            number = ranges.first_mapped_in(start, end)
            if number >= 0:
                self.lives[number].pool = self.pool_number(pool)
                self.lives[number].certain = True
        for life in self.lives:
            if not life.certain:
                life.small = life.size == PAGE if not life.expandable else life.small

    def _columns(self, entries: NDArray[np.int64]) -> Iterator[tuple[int, int, int, int, int]]:
        """Entry, action, address, size and stream."""
        history = self.history
        columns = (entries, *(column[entries] for column in (history.action, history.address, history.size)))
        return zip(*(column.tolist() for column in (*columns, history.stream[entries])), strict=True)

    def _new(self, life: SegmentLife) -> int:
        self.lives.append(life)
        return len(self.lives) - 1

    def _ranges_at_first(self, entries: NDArray[np.int64], ranges: _Ranges) -> None:
        """Find the expandable memory that existed before: take the final state and undo the history."""
        history = self.history
        owner: Intervals[tuple[int, bool]] = Intervals()
        for start, end, (stream, small, _) in self._final.pages:
            owner.put(start, end, (stream, small))
        of_pages = entries[history.action[entries] >= SEGMENT_MAP]
        for _, action, address, size, stream in self._columns(of_pages[::-1]):
            if action == SEGMENT_MAP:
                owner.clear(*_pages(address, size))
            else:
                owner.put(*_pages(address, size), (stream, size % LARGE_PAGE != 0))
        last: SegmentLife | None = None
        first_pages: Intervals[bool] = Intervals()
        number = -1
        for start, end, (stream, small) in owner:
            near = last is not None and start * PAGE - last.address - last.size <= FAR
            if last is None or not near or (last.stream, last.small) != (stream, small):
                last = SegmentLife(start * PAGE, 0, stream, -1, len(history), expandable=True, small=small)
                last.first_pages = first_pages = Intervals()
                number = self._new(last)
                ranges.add(number)
            ranges.map(number, start, end)
            first_pages.put(start, end, True)
            last.first_end = end * PAGE
            last.size = end * PAGE - last.address

    def _map(self, ranges: _Ranges, address: int, size: int, stream: int, entry: int) -> int:
        """Map pages.

        A range is mapped from its front, so new pages extend it or fill a hole; others begin a new range.
        """
        number = ranges.at_or_before(address)
        life = self.lives[number] if number >= 0 else None
        if life is None or life.stream != stream or address > life.address + life.size:
            number = ranges.hole_before(address, stream, size == PAGE)
            if number < 0:
                life = SegmentLife(address, 0, stream, entry, len(self.history), expandable=True, small=size == PAGE)
                number = self._new(life)
                ranges.add(number)
            life = self.lives[number]
        ranges.map(number, *_pages(address, size))
        life.size = max(life.size, address + size - life.address)
        return number

    # --- pools ---------------------------------------------------------------------------------------------------

    def _read_pools(self) -> None:
        """Read pools from the entries: newer recordings name the pool in every entry."""
        ids = self.history.pool_ids
        if ids is None:
            return
        for entry in np.flatnonzero(self.of_entry >= 0).tolist():
            life = self.lives[self.of_entry[entry]]
            life.pool = self.pool_number((int(ids[entry, 0]), int(ids[entry, 1])))
            life.certain = True

    def segment_at(self, address: int, entry: int) -> int:
        """Return the life that contains an address at an entry; -1 for none."""
        for number, life in enumerate(self.lives):
            if life.begin <= entry <= life.end and life.address <= address < life.address + life.size:
                return number
        return -1

    def assume_pools(self, segment_of_block: NDArray[np.int32]) -> None:
        """Assign segments to a private pool if they were allocated on a stream between two requests of that pool.

        A stream is routed to a pool for a contiguous time, so everything in between belongs to the pool.
        """
        history = self.history
        certain = np.array([life.certain for life in self.lives] + [False])
        pools = np.array([life.pool for life in self.lives] + [0])
        blocks = np.flatnonzero(certain[segment_of_block] & ~history.was_there)
        entries = history.first_entry[blocks]
        order = np.argsort(entries)
        entries, requested = entries[order], pools[segment_of_block[blocks]][order]
        self._last_request = dict(zip(requested.tolist(), entries.tolist(), strict=True))
        streams = history.stream[entries]
        on_stream = {stream: np.flatnonzero(streams == stream) for stream in np.unique(streams).tolist()}
        for life in self.lives:
            if life.certain or life.stream not in on_stream:
                continue
            requests = on_stream[life.stream]
            place = int(np.searchsorted(entries[requests], life.begin))
            if 0 < place < len(requests):
                before, after = int(requested[requests[place - 1]]), int(requested[requests[place]])
                if before == after and self.may_be_of(life, before):
                    life.pool = before

    def may_be_of(self, life: SegmentLife, pool: int) -> bool:
        """Whether a segment can belong to a pool. A pool that releases segments has no user left."""
        return pool == 0 or life.end >= len(self.history) or self._last_request.get(pool, -1) < life.end

    def of_blocks(self) -> NDArray[np.int32]:
        """By block life: the segment life that contains it; -1 for none."""
        history = self.history
        found = np.full(history.lives, -1, dtype=np.int32)
        changes = sorted(
            [(life.begin, 1, number) for number, life in enumerate(self.lives)]
            + [(life.end, 0, number) for number, life in enumerate(self.lives)]
        )
        starts = np.where(history.was_there, -1, history.first_entry)
        order = np.argsort(starts, kind="stable")
        addresses = history.address[history.first_entry]
        alive = SortedKeys()
        done = 0
        for block in order.tolist():
            while done < len(changes) and changes[done][0] <= starts[block]:
                _, begins, number = changes[done]
                place = (self.lives[number].address, number)
                (alive.add if begins else alive.remove)(place)
                done += 1
            address = int(addresses[block])
            nearest = alive.at_or_before((address, len(self.lives)))
            if nearest is not None:
                base, number = nearest
                if address < base + self.lives[number].size:
                    found[block] = number
        return found


class _Ranges:
    """The expandable ranges at one moment of the history, and their mapped pages."""

    def __init__(self, lives: list[SegmentLife]) -> None:
        self._lives = lives
        self._places = SortedKeys()
        """Address and number of each."""
        self._mapped: Intervals[int] = Intervals()

    def add(self, number: int) -> None:
        self._places.add((self._lives[number].address, number))

    def map(self, number: int, start: int, end: int) -> None:
        for first, last, before in self._mapped.clear(start, end):
            self._lives[before].mapped -= last - first
        self._mapped.put(start, end, number)
        self._lives[number].mapped += max(end - start, 0)

    def unmap(self, address: int, size: int, entry: int) -> int:
        """Return the range that pages were removed from; -1 for none."""
        start, end = _pages(address, size)
        number = self._mapped.at(address // PAGE)
        if number is None:
            return -1
        for first, last, owner in self._mapped.clear(start, end):
            self._lives[owner].mapped -= last - first
        if self._lives[number].mapped <= 0 and self._lives[number].end > entry:
            self._lives[number].end = entry
            self._places.remove((self._lives[number].address, number))
        return number

    def at_or_before(self, address: int) -> int:
        """Return the range with the highest address up to this one; -1 for none."""
        place = self._places.at_or_before((address, len(self._lives)))
        return -1 if place is None else int(place[1])

    def first_mapped_in(self, start: int, end: int) -> int:
        """Return the range of the first mapped page of these; -1 for none."""
        number = self._mapped.first_in(start, end)
        return -1 if number is None else number

    def hole_before(self, address: int, stream: int, small: bool) -> int:
        """Return the earlier range that begins here, although nothing was mapped here then; -1 for none."""
        place = self._places.after((address, len(self._lives)))
        if place is None:
            return -1
        number: int = place[1]
        life = self._lives[number]
        if life.begin >= 0 or (life.stream, life.small) != (stream, small) or life.address - address > FAR:
            return -1
        self._places.remove(place)
        life.size += life.address - address
        life.address = address
        self.add(number)
        return number


class _FinalSegments:
    """The segments of one device in the snapshot."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        segments = snapshot.segments
        self.plain: list[SegmentLife] = []
        self.pages: Intervals[tuple[int, bool, tuple[int, int]]] = Intervals()
        """Stream, whether small, and pool of expandable memory."""
        self._pools: dict[int, tuple[int, int]] = {}
        for i in np.flatnonzero(segments.device == device).tolist():
            address, size = int(segments.address[i]), int(segments.total_size[i])
            stream, small = int(segments.stream[i]), bool(segments.type[i] == SegmentType.SMALL)
            pool = (int(segments.pool_first[i]), int(segments.pool_second[i]))
            if segments.is_expandable[i]:
                self.pages.put(*_pages(address, size), (stream, small, pool))
            else:
                self.plain.append(SegmentLife(address, size, stream, -1, 0, small=small))
                self._pools[address] = pool

    def pool_at(self, address: int) -> tuple[int, int]:
        return self._pools[address]


def _pages(address: int, size: int) -> tuple[int, int]:
    """Return the first whole page, and one past the last."""
    return address // PAGE, (address + size) // PAGE
