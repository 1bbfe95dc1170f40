"""Where blocks were: the segments of a history through time, and the pool of each.

Trace entries mostly do not say which pool they are about. A segment that is still there at the end has its pool in the
snapshot; one that vanished is taken for the default pool's until that contradicts what happened (see `Recording` in
replay.py).
"""

from __future__ import annotations

from bisect import bisect_right, insort
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action, SegmentType
from allotment._formats.torch_snapshot import Snapshot
from allotment.lab.replay.workload import History

__all__ = ["Placement", "SegmentLife"]

PAGE = 2 << 20
"""What every page of expandable memory is a multiple of."""
LARGE_PAGE = 20 << 20
FAR = 8 << 30
"""Mapped pages further apart than this are not taken for one range."""


@dataclass(slots=True)
class SegmentLife:
    """A segment from when it was obtained to when it was released; of expandable memory the whole range."""

    address: int
    size: int
    """Of a range: as far as pages were ever mapped."""
    stream: int
    begin: int
    """The entry that obtained it; -1 if it was there before."""
    end: int
    """The entry that released the last of it; the number of entries if none did."""
    expandable: bool = False
    small: bool = False
    pool: int = 0
    certain: bool = False
    """Whether the pool is known, and not only assumed."""
    pages: set[int] = field(default_factory=set)
    """Of a range: the pages that are mapped, while the history is walked through."""
    first_pages: set[int] = field(default_factory=set)
    """Of a range that was there before: the pages mapped then."""


class Placement:
    """The segments of one device through time. `pool_ids` numbers the pools; number 0 is the default one."""

    def __init__(self, history: History, snapshot: Snapshot, device: int) -> None:
        self.history = history
        self.pool_ids: list[tuple[int, int]] = [(0, 0)]
        self.lives: list[SegmentLife] = []
        self._last_request: dict[int, int] = {}
        self.of_entry = np.full(len(history), -1, dtype=np.int32)
        """By entry of a segment: its life."""
        self._final = _FinalSegments(snapshot, device)
        self._walk()
        self._read_pools()

    def pool_number(self, pool_id: tuple[int, int]) -> int:
        if pool_id not in self.pool_ids:
            self.pool_ids.append(pool_id)
        return self.pool_ids.index(pool_id)

    @property
    def has_private_pools(self) -> bool:
        return any(life.pool != 0 for life in self.lives)

    # --- walking through the history -----------------------------------------------------------------------------

    def _walk(self) -> None:
        history = self.history
        entries = np.flatnonzero((history.action >= Action.SEGMENT_ALLOC) & (history.action <= Action.SEGMENT_UNMAP))
        plain: dict[int, int] = {}
        ranges = self._ranges_at_first(entries)
        for entry in entries.tolist():
            action, address = int(history.action[entry]), int(history.address[entry])
            size, stream = int(history.size[entry]), int(history.stream[entry])
            if action == Action.SEGMENT_ALLOC:
                plain[address] = number = self._new(SegmentLife(address, size, stream, entry, len(history)))
            elif action == Action.SEGMENT_FREE:
                number = plain.pop(address, -1)
                if number < 0:
                    number = self._new(SegmentLife(address, size, stream, -1, len(history)))
                self.lives[number].end = entry
            elif action == Action.SEGMENT_MAP:
                number = self._map(ranges, address, size, stream, entry)
            else:
                number = self._unmap(ranges, address, size, entry)
            self.of_entry[entry] = number
        for segment in self._final.plain:
            if segment.address not in plain:
                segment.end = len(history)
                plain[segment.address] = self._new(segment)
            found = self.lives[plain[segment.address]]
            found.pool = self.pool_number(self._final.pool_at(segment.address))
            found.certain, found.small = True, segment.small
        for number in ranges:
            known = self._final.pool_of_pages(self.lives[number].pages)
            if known is not None:
                self.lives[number].pool = self.pool_number(known)
                self.lives[number].certain = True
        for life in self.lives:
            if not life.certain:
                life.small = life.size == PAGE if not life.expandable else life.small

    def _new(self, life: SegmentLife) -> int:
        self.lives.append(life)
        return len(self.lives) - 1

    def _ranges_at_first(self, entries: NDArray[np.int64]) -> list[int]:
        """The expandable memory that was there before: what is left at the end, with the history undone."""
        history = self.history
        owner: dict[int, tuple[int, bool]] = dict(self._final.pages)
        for entry in entries[::-1].tolist():
            pages = _pages(int(history.address[entry]), int(history.size[entry]))
            if history.action[entry] == Action.SEGMENT_MAP:
                for page in pages:
                    owner.pop(page, None)
            elif history.action[entry] == Action.SEGMENT_UNMAP:
                small = int(history.size[entry]) % LARGE_PAGE != 0
                owner.update(dict.fromkeys(pages, (int(history.stream[entry]), small)))
        ranges: list[int] = []
        for page in sorted(owner):
            stream, small = owner[page]
            last = self.lives[ranges[-1]] if ranges else None
            near = last is not None and page * PAGE - last.address - last.size <= FAR
            if last is None or not near or (last.stream, last.small) != (stream, small):
                life = SegmentLife(page * PAGE, 0, stream, -1, len(history), expandable=True, small=small)
                ranges.append(self._new(life))
                last = life
            last.pages.add(page)
            last.first_pages.add(page)
            last.size = (page + 1) * PAGE - last.address
        return ranges

    def _map(self, ranges: list[int], address: int, size: int, stream: int, entry: int) -> int:
        """A range is backed from its front, so new pages continue it or fill a hole in it; others begin one."""
        for number in ranges:
            life = self.lives[number]
            if life.stream == stream and life.address <= address <= life.address + life.size:
                break
        else:
            number = self._hole_before(ranges, address, stream, size == PAGE)
            if number < 0:
                life = SegmentLife(address, 0, stream, entry, len(self.history), expandable=True, small=size == PAGE)
                number = self._new(life)
                ranges.append(number)
            life = self.lives[number]
        life.pages.update(_pages(address, size))
        life.size = max(life.size, address + size - life.address)
        return number

    def _hole_before(self, ranges: list[int], address: int, stream: int, small: bool) -> int:
        """The range that was there before and begins here, though nothing was mapped here then; -1 for none."""
        behind = [number for number in ranges if self.lives[number].address > address]
        number = min(behind, key=lambda number: self.lives[number].address, default=-1)
        if number < 0:
            return -1
        life = self.lives[number]
        if life.begin >= 0 or (life.stream, life.small) != (stream, small) or life.address - address > FAR:
            return -1
        life.size += life.address - address
        life.address = address
        return number

    def _unmap(self, ranges: list[int], address: int, size: int, entry: int) -> int:
        for number in ranges:
            life = self.lives[number]
            if life.address <= address < life.address + life.size and address // PAGE in life.pages:
                life.pages.difference_update(_pages(address, size))
                if not life.pages:
                    life.end = entry
                    ranges.remove(number)
                return number
        return -1

    # --- pools ---------------------------------------------------------------------------------------------------

    def _read_pools(self) -> None:
        """Newer recordings say the pool with every entry."""
        ids = self.history.pool_ids
        if ids is None:
            return
        for entry in np.flatnonzero(self.of_entry >= 0).tolist():
            life = self.lives[self.of_entry[entry]]
            life.pool = self.pool_number((int(ids[entry, 0]), int(ids[entry, 1])))
            life.certain = True

    def segment_at(self, address: int, entry: int) -> int:
        """The life that holds an address at an entry; -1 for none."""
        for number, life in enumerate(self.lives):
            if life.begin <= entry <= life.end and life.address <= address < life.address + life.size:
                return number
        return -1

    def assume_pools(self, segment_of_block: NDArray[np.int32]) -> None:
        """Take for a private pool's what was obtained on a stream between two requests of that pool.

        A stream is routed to a pool for a stretch of time, so what lies between is of that stretch.
        """
        history = self.history
        certain = np.array([life.certain for life in self.lives] + [False])
        pools = np.array([life.pool for life in self.lives] + [0])
        blocks = np.flatnonzero(certain[segment_of_block] & ~history.was_there)
        entries = history.first_entry[blocks]
        order = np.argsort(entries)
        entries, requested = entries[order], pools[segment_of_block[blocks]][order]
        self._last_request = {int(pool): int(entries[requested == pool][-1]) for pool in np.unique(requested)}
        streams = history.stream[entries]
        for life in self.lives:
            on_stream = np.flatnonzero(streams == life.stream)
            place = int(np.searchsorted(entries[on_stream], life.begin))
            if not life.certain and 0 < place < len(on_stream):
                before, after = int(requested[on_stream[place - 1]]), int(requested[on_stream[place]])
                if before == after and self.may_be_of(life, before):
                    life.pool = before

    def may_be_of(self, life: SegmentLife, pool: int) -> bool:
        """Whether a segment can have been of a pool. One that gives segments back has no user any more."""
        return pool == 0 or life.end >= len(self.history) or self._last_request.get(pool, -1) < life.end

    def of_blocks(self) -> NDArray[np.int32]:
        """By block life: the segment life that holds it; -1 for none."""
        history = self.history
        found = np.full(history.lives, -1, dtype=np.int32)
        changes = sorted(
            [(life.begin, 1, number) for number, life in enumerate(self.lives)]
            + [(life.end, 0, number) for number, life in enumerate(self.lives)]
        )
        starts = np.where(history.was_there, -1, history.first_entry)
        order = np.argsort(starts, kind="stable")
        addresses = history.address[history.first_entry]
        alive: list[tuple[int, int]] = []
        done = 0
        for block in order.tolist():
            while done < len(changes) and changes[done][0] <= starts[block]:
                _, begins, number = changes[done]
                place = (self.lives[number].address, number)
                if begins:
                    insort(alive, place)
                else:
                    alive.remove(place)
                done += 1
            address = int(addresses[block])
            place_in_list = bisect_right(alive, (address, len(self.lives))) - 1
            if place_in_list >= 0:
                base, number = alive[place_in_list]
                if address < base + self.lives[number].size:
                    found[block] = number
        return found


class _FinalSegments:
    """The segments of one device as the snapshot has them."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        segments = snapshot.segments
        self.plain: list[SegmentLife] = []
        self.pages: dict[int, tuple[int, bool]] = {}
        self._pools: dict[int, tuple[int, int]] = {}
        for i in np.flatnonzero(segments.device == device).tolist():
            address, size = int(segments.address[i]), int(segments.total_size[i])
            stream, small = int(segments.stream[i]), bool(segments.type[i] == SegmentType.SMALL)
            pool = (int(segments.pool_first[i]), int(segments.pool_second[i]))
            if segments.is_expandable[i]:
                for page in _pages(address, size):
                    self.pages[page] = (stream, small)
                    self._pools[page * PAGE] = pool
            else:
                self.plain.append(SegmentLife(address, size, stream, -1, 0, small=small))
                self._pools[address] = pool

    def pool_at(self, address: int) -> tuple[int, int]:
        return self._pools[address]

    def pool_of_pages(self, pages: set[int]) -> tuple[int, int] | None:
        return next((self._pools[page * PAGE] for page in pages if page * PAGE in self._pools), None)


def _pages(address: int, size: int) -> range:
    return range(address // PAGE, (address + size) // PAGE)
