"""The state at the beginning of a history that does not begin empty.

Recording may begin in mid-run, and the ring of the history may overflow. Two sources show the earlier state: blocks
that are freed but were never allocated, and blocks that still exist at the end. Together they give the segments and the
blocks in use at the first entry, and the gaps between them.

One thing is not certain. A large block can be up to 1 MiB larger than its request, and a free records only the request.
A gap of up to 1 MiB after a block is such an excess, since no free block is that small; with a larger gap the excess is
known if something was allocated there in the block's lifetime, and assumed to be 0 otherwise. A history file contains
the earlier state, so nothing is uncertain.

A history of dense placement does not say where its chunks were mapped before it began. No replay follows it, so its
blocks are requested again, wherever the replay places them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action, BlockState
from allotment._formats.torch_snapshot import Snapshot
from allotment._rules import rules_of
from allotment._settings import Settings
from allotment.errors import FormatError
from allotment.lab.replay.loop import rounded_sizes
from allotment.lab.replay.placement import PAGE, SegmentLife, SegmentTimeline
from allotment.lab.replay.records import CALL, LAYOUT, PIECE, Kind, PieceKind
from allotment.lab.replay.workload import NEVER, History, Workload, due_calls, lanes

__all__ = ["InitialState", "initial_state_of"]

MOST_EXCESS = 1 << 20
MIN_BLOCK = 512
Row: TypeAlias = tuple[int, ...]
"""The fields of a record."""


@dataclass(slots=True)
class _Block:
    address: int
    size: int
    requested: int
    number: int
    freed_at: int
    exact: bool = False
    """Whether the size is known, and not only the request."""


@dataclass(frozen=True, slots=True)
class InitialState:
    """The state before the first entry, as a layout to restore and as calls to make."""

    layouts: NDArray[np.void]
    pieces: NDArray[np.void]
    requests: NDArray[np.void]
    """For an arrangement other than the recorded one: a MALLOC for every block that was in use."""
    frees: NDArray[np.void]
    """Frees of blocks that already waited for other streams."""
    block_count: int
    """The number of blocks of the initial state and the history together."""
    addresses: NDArray[np.uint64]
    """By block: the address of each block of the initial state."""
    uncertain: int
    """Blocks whose size is not certain."""

    @property
    def is_empty(self) -> bool:
        return len(self.layouts) == 0 and len(self.requests) == 0


def initial_state_of(
    history: History,
    placement: SegmentTimeline,
    snapshot: Snapshot,
    device: int,
    settings: Settings,
    workload: Workload,
    pools: NDArray[np.int32],
) -> InitialState:
    """`settings` were in force; `workload` has the calls that complete frees; `pools` is the pool of each life."""
    blocks = _blocks_at_first(history, snapshot, device, settings)
    block_count = max(history.lives, 1 + max((block.number for block in blocks), default=-1))
    addresses = np.zeros(block_count, dtype=np.uint64)
    addresses[[block.number for block in blocks]] = [block.address for block in blocks]
    left = sorted(blocks, key=lambda block: block.address)
    laid_out: list[tuple[Row, list[Row]]] = []
    uncertain = 0
    if settings.placement == "dense":
        requests = [_requested_again(history, block, pools) for block in left]
    else:
        laid_out, requests, uncertain = _arranged(left, placement, history)
    if rules_of(settings.compat).free_order != "address":
        # Their age matters then, and a snapshot does not record it. Drivers return descending addresses.
        laid_out.reverse()
    return InitialState(
        layouts=np.array([layout for layout, _ in laid_out], dtype=LAYOUT),
        pieces=np.array([piece for _, pieces in laid_out for piece in pieces], dtype=PIECE),
        requests=np.array(requests, dtype=CALL),
        frees=_pending_frees(history, snapshot, blocks, workload),
        block_count=block_count,
        addresses=addresses,
        uncertain=uncertain,
    )


def _requested_again(history: History, block: _Block, pools: NDArray[np.int32]) -> Row:
    """Return the request for a block whose segment is not known. Only blocks that are freed need stream and pool."""
    stream, pool = 0, 0
    if block.number < history.lives:
        stream, pool = int(history.stream[history.first_entry[block.number]]), int(pools[block.number])
    return block.requested, stream, block.number, pool, 0, Kind.MALLOC


def _arranged(
    left: list[_Block], placement: SegmentTimeline, history: History
) -> tuple[list[tuple[Row, list[Row]]], list[Row], int]:
    """Return each segment with its pieces, the requests for the blocks in them, and how many sizes are uncertain."""
    laid_out: list[tuple[Row, list[Row]]] = []
    requests: list[Row] = []
    uncertain = 0
    starts = np.array([block.address for block in left], dtype=np.uint64)
    later = _LaterRequests(history)
    end = 0
    for life in sorted((life for life in placement.lives if life.begin < 0), key=lambda life: life.address):
        if life.address < max(end, 1) or life.size <= 0 or life.address % MIN_BLOCK or life.size % MIN_BLOCK:
            raise FormatError(f"there cannot have been a segment of {life.size} bytes at {life.address:#x}")
        end = life.address + life.size_at_first
        first, last = np.searchsorted(starts, [life.address, life.address + life.size_at_first])
        inside = left[first:last]
        cut = _Cut(life, later)
        for block in inside:
            cut.add(block)
            requests.append((block.requested, life.stream, block.number, life.pool, 0, Kind.MALLOC))
        cut.finish()
        uncertain += cut.uncertain
        layout = (
            life.address,
            life.size_at_first,
            life.stream,
            life.pool,
            life.small,
            life.expandable,
            len(cut.pieces),
        )
        laid_out.append((layout, cut.pieces))
    return laid_out, requests, uncertain


def _blocks_at_first(history: History, snapshot: Snapshot, device: int, settings: Settings) -> list[_Block]:
    """Return blocks that were freed but never allocated, and blocks without any entry."""
    there = np.flatnonzero(history.was_there)
    entries = history.first_entry[there]
    requested = history.size[entries]
    rounded = rounded_sizes(settings, requested)
    found = [
        _Block(*values)
        for values in zip(
            history.address[entries].tolist(),
            rounded.tolist(),
            requested.tolist(),
            there.tolist(),
            history.freed_at[there].tolist(),
            strict=True,
        )
    ]
    mentioned = set(history.address[history.life >= 0].tolist())
    blocks = snapshot.blocks
    in_use = (blocks.state == BlockState.ACTIVE_ALLOCATED) | (blocks.state == BlockState.ACTIVE_PENDING_FREE)
    number = history.lives
    for i in np.flatnonzero(in_use & (snapshot.segments.device[blocks.segment] == device)).tolist():
        address = int(blocks.address[i])
        if address not in mentioned:
            requested_size = int(blocks.requested_size[i]) or int(blocks.size[i])
            found.append(_Block(address, int(blocks.size[i]), requested_size, number, len(history)))
            number += 1
    first = snapshot.first_blocks
    if first is not None:
        sizes = dict(zip(first.address.tolist(), first.size.tolist(), strict=True))
        for block in found:
            block.exact = block.address in sizes
            block.size = sizes.get(block.address, block.size)
    return found


class _LaterRequests:
    """Finds the first request that was served from an interval of memory."""

    def __init__(self, history: History) -> None:
        entries = np.flatnonzero(history.action == Action.ALLOC)
        order = np.argsort(history.address[entries], kind="stable")
        self._entries = entries[order]
        self._addresses = history.address[self._entries]

    def first_in(self, start: int, end: int) -> tuple[int, int] | None:
        """Return address and entry of the first such request; None if there is none."""
        low, high = np.searchsorted(self._addresses, np.array([start, end], dtype=np.uint64))
        if low == high:
            return None
        earliest = low + int(np.argmin(self._entries[low:high]))
        return int(self._addresses[earliest]), int(self._entries[earliest])


class _Cut:
    """One segment, divided into the blocks that were in use and the gaps between them."""

    def __init__(self, life: SegmentLife, later: _LaterRequests) -> None:
        self.pieces: list[Row] = []
        self.uncertain = 0
        self._life = life
        self._later = later
        self._at = life.address
        self._last: _Block | None = None

    def add(self, block: _Block) -> None:
        end = self._life.address + self._life.size_at_first
        if block.address < self._at or block.address + block.size > end or (block.address | block.size) % MIN_BLOCK:
            raise FormatError(
                f"a block of {block.size} bytes at {block.address:#x} does not fit in what else the segment at"
                f" {self._life.address:#x} held when the history began"
            )
        self._gap(block.address)
        self.pieces.append((block.size, block.requested, block.number, PieceKind.IN_USE))
        self._at = block.address + block.size
        self._last = block

    def finish(self) -> None:
        self._gap(self._life.address + self._life.size_at_first)

    def _gap(self, end: int) -> None:
        if self._at < end and self._last is not None and self._may_be_larger(self._last):
            self._widen(self._last, end)
        while self._at < end:
            piece_end = self._end_of_kind(end)
            kind = PieceKind.HOLE if self._is_hole(self._at) else PieceKind.IDLE
            self.pieces.append((piece_end - self._at, 0, -1, kind))
            self._at = piece_end

    def _may_be_larger(self, block: _Block) -> bool:
        return not (self._life.expandable or self._life.small or block.exact)

    def _is_hole(self, address: int) -> bool:
        pages = self._life.first_pages
        return pages is not None and not pages.at(address // PAGE)

    def _end_of_kind(self, end: int) -> int:
        """Return the end of the memory with the same mapping state as the current address."""
        pages = self._life.first_pages
        if pages is None:
            return end
        return min(pages.end_of_kind(self._at // PAGE, -(-end // PAGE)) * PAGE, end)

    def _widen(self, block: _Block, end: int) -> None:
        """Add the excess to a large block."""
        excess = end - self._at
        if excess > MOST_EXCESS:
            request = self._later.first_in(self._at, end)
            if request is None or not 0 <= request[1] < block.freed_at:
                self.uncertain += block.number >= 0 and block.freed_at >= 0
                return
            excess = request[0] - self._at
            if excess > MOST_EXCESS:
                return
        size, requested, number, kind = self.pieces[-1]
        self.pieces[-1] = (size + excess, requested, number, kind)
        self._at += excess


def _pending_frees(history: History, snapshot: Snapshot, blocks: list[_Block], workload: Workload) -> NDArray[np.void]:
    """Return frees that were requested before the history began, and waited for other streams."""
    numbers = np.flatnonzero(history.was_pending)
    frees = np.zeros(len(numbers), dtype=CALL)
    frees["kind"] = Kind.FREE_SHARED
    frees["block"] = numbers
    frees["due"] = due_calls(history, history.completed_at[numbers], workload)
    is_pending = snapshot.blocks.state == BlockState.ACTIVE_PENDING_FREE
    pending = set(snapshot.blocks.address[is_pending].tolist())
    waiting = [block.number for block in blocks if block.number >= history.lives and block.address in pending]
    never = np.zeros(len(waiting), dtype=CALL)
    never["kind"], never["block"], never["due"] = Kind.FREE_SHARED, waiting, NEVER
    frees = np.concatenate([frees, never])
    # On separate streams: these were freed before anything in the history.
    frees["stream"] = lanes(frees["due"]) + np.uint64(1 << 32)
    return frees
