"""Reads a history file of `Allocator.record_history(file=...)` as the snapshot of its end.

The file contains a snapshot of the moment at which the recording began, and what happened since. The reader derives the
state at the end: the segments, and those blocks that existed from the beginning and that no entry mentions. All other
blocks are in the history. If the program was killed and the file is cut off, the reader reads up to the last complete
row.
"""

from __future__ import annotations

import json
from bisect import bisect_left, bisect_right
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import HISTORY_MAGIC, Action, BlockState, SegmentType
from allotment._formats.history_rows import (
    FORM_VERSION,
    HEAD_BYTES,
    LEAST_ROW_BYTES,
    Columns,
    FrameKind,
    checksum_of,
)
from allotment._formats.limits import Limits
from allotment._formats.pickle_columns import Frame
from allotment._formats.plain import Plain, Scalar
from allotment._formats.torch_snapshot import Blocks, Segments, Snapshot, Stack, Trace, read_snapshot
from allotment._formats.unpack import unpacked
from allotment.errors import FormatError

__all__ = ["HISTORY_FIELD", "HistoryFrames", "read_history"]

HISTORY_FIELD = "allotment_history"
"""In `Snapshot.extra`: "records", "lost", and "cut_at", the byte at which the file is cut off, or None."""
BYTES_A_RECORD = 61
"""Size of a record in all columns together."""
SMALL_SEGMENT = 2 << 20
MOST_ADDRESS = 2**64 - 1
COLUMNS = frozenset(
    ("action", "address", "size", "stream", "time_us", "pool_first", "pool_second", "stack", "compile_context")
)


@dataclass(frozen=True, slots=True)
class _Head:
    kind: int
    length: int
    records: int
    checksum: int


class HistoryFrames:
    """The frames of a history file, in order; afterwards `cut_at` is the position at which the file was cut off."""

    def __init__(self, stream: BinaryIO | Iterator[bytes], limits: Limits = Limits()) -> None:  # noqa: B008 (immutable)
        self._pieces = stream if isinstance(stream, Iterator) else unpacked(stream, limits)
        self._ahead = bytearray()
        self._at = 0
        self.cut_at: int | None = None

    def _next(self, count: int) -> bytes:
        """Return `count` bytes; fewer at the end."""
        while len(self._ahead) < count:
            piece = next(self._pieces, b"")
            if not piece:
                break
            self._ahead += piece
        found = bytes(self._ahead[:count])
        del self._ahead[:count]
        self._at += len(found)
        return found

    def __iter__(self) -> Iterator[tuple[FrameKind, int, bytes]]:
        """Yield kind, number of records, content. The last content may be incomplete."""
        opening = self._next(len(HISTORY_MAGIC) + 1)
        if opening[:-1] != HISTORY_MAGIC:
            raise FormatError("not a history file: wrong first bytes")
        if opening[-1] != FORM_VERSION:
            raise FormatError(f"a history file of version {opening[-1]}; this Allotment reads version {FORM_VERSION}")
        while True:
            begin = self._at
            packed = self._next(HEAD_BYTES)
            if not packed:
                return
            numbers = [int.from_bytes(packed[place : place + 4], "little") for place in range(0, HEAD_BYTES, 4)]
            head = _Head(*numbers)
            is_whole = len(packed) == HEAD_BYTES and head.kind in list(FrameKind)
            content = self._next(head.length) if is_whole else b""
            if len(content) < head.length or not is_whole or checksum_of(content) != head.checksum:
                self.cut_at = begin
                if is_whole and head.kind == FrameKind.RECORDS and len(content) < head.length:
                    yield FrameKind.RECORDS, head.records, content
                return
            yield FrameKind(head.kind), head.records, content


def read_history(pieces: Iterator[bytes], limits: Limits) -> Snapshot:
    """Return the snapshot of a history file's content. Raises FormatError."""
    frames = HistoryFrames(pieces, limits)
    beginning: Snapshot | None = None
    stacks: list[Stack] = [()]
    names = [""]
    notes: list[dict[str, Plain]] = []
    rows: list[bytes] = []
    count = lost = 0
    for kind, records, content in frames:
        if kind is FrameKind.SNAPSHOT and beginning is None:
            beginning = read_snapshot(content, limits=limits)
        elif kind is FrameKind.STACKS:
            _extend(stacks, _listed(content), _stack)
        elif kind is FrameKind.NAMES:
            _extend(names, _listed(content), str)
        elif kind is FrameKind.NOTES:
            notes += [_note(note) for note in _listed(content)]
        elif kind is FrameKind.LOST:
            lost += records
        elif kind is FrameKind.RECORDS:
            count += min(records, len(content) // LEAST_ROW_BYTES)
            rows.append(content)
            if count * BYTES_A_RECORD > limits.max_memory:
                raise FormatError(
                    f"the history has more than {limits.max_memory // BYTES_A_RECORD:,} records; a higher max_memory"
                    " would allow it"
                )
    if beginning is None:
        raise FormatError("the history file ends inside its first frame")
    columns = Columns(count)
    for content in rows:
        columns.read(content)
    facts: dict[Scalar, Plain] = {"records": columns.filled, "lost": lost, "cut_at": frames.cut_at}
    return _Assembled(beginning, columns, stacks, names, notes, facts).snapshot()


def _listed(content: bytes) -> list[Plain]:
    try:
        found = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"a frame of the history file is not JSON: {error}") from None
    if not isinstance(found, list):
        raise FormatError("a frame of the history file is not a list")
    return found


def _extend(known: list, further: list[Plain], made) -> None:  # type: ignore[no-untyped-def, type-arg]
    """Add the listed values; the first number must be the next one."""
    if not further or further[0] != len(known):
        raise FormatError("a frame of the history file does not continue the one before it")
    known += [made(each) for each in further[1:]]


def _note(note: Plain) -> dict[str, Plain]:
    if not isinstance(note, dict):
        raise FormatError("a note of the history file is not a dictionary")
    return {str(key): value for key, value in note.items()}


def _stack(frames: Plain) -> Stack:
    if not isinstance(frames, list):
        raise FormatError("a stack of the history file is not a list of frames")
    found = []
    for frame in frames:
        match frame:
            case [str(name), str(filename), int(line)]:
                found.append(Frame(name, filename, line))
            case _:
                raise FormatError("a frame of a stack of the history file is not a name, a file and a line")
    return tuple(found)


class _Assembled:
    """A file's content, assembled as a snapshot."""

    def __init__(
        self,
        beginning: Snapshot,
        columns: Columns,
        stacks: list[Stack],
        names: list[str],
        notes: list[dict[str, Plain]],
        facts: dict[Scalar, Plain],
    ) -> None:
        self.beginning = beginning
        self.columns = columns
        self.stacks = stacks
        self.names = names
        self.notes = notes
        self.facts = facts
        device = beginning.extra.get("device", 0)
        self.device = device if isinstance(device, int) and 0 <= device < 1024 else 0
        self.trace = self._trace()

    def snapshot(self) -> Snapshot:
        segments = self._segments()
        return replace(
            self.beginning,
            traces=(self.trace,),
            segments=segments,
            blocks=self._blocks(segments),
            stacks=(*self.beginning.stacks, *self.stacks[1:]),
            compile_contexts=tuple(self.names[1:]),
            user_metadata=tuple(self.names[1:]),
            external_annotations=self.notes,
            devices=(self.device,),
            extra={**self.beginning.extra, HISTORY_FIELD: self.facts},
            first_blocks=self.beginning.blocks,
        )

    def _trace(self) -> Trace:
        columns, filled = self.columns, self.columns.filled
        behind = len(self.beginning.stacks) - 1
        return Trace(
            device=self.device,
            action=columns.action[:filled],
            address=columns.address[:filled],
            size=columns.size[:filled],
            stream=columns.stream[:filled],
            time_us=columns.time_us[:filled],
            pool_first=columns.pool_first[:filled],
            pool_second=columns.pool_second[:filled],
            stack=_numbered(columns.stack[:filled], len(self.stacks), behind),
            compile_context=_numbered(columns.compile_context[:filled], len(self.names), -1),
            user_metadata=_numbered(columns.metadata[:filled], len(self.names), -1),
            present=COLUMNS | {"user_metadata"},
            extra={},
        )

    def _segments(self) -> Segments:
        """Return the segments at the end."""
        segments, trace = self.beginning.segments, self.trace
        mine = np.flatnonzero(segments.device == self.device)
        left = _Memory()
        for i in mine.tolist():
            row = (
                int(segments.stream[i]),
                int(segments.type[i]),
                int(segments.pool_first[i]),
                int(segments.pool_second[i]),
            )
            left.add(int(segments.address[i]), int(segments.total_size[i]), bool(segments.is_expandable[i]), row)
        about = (trace.action >= Action.SEGMENT_ALLOC) & (trace.action <= Action.SEGMENT_UNMAP)
        for i in np.flatnonzero(about).tolist():
            action, address, size = int(trace.action[i]), int(trace.address[i]), int(trace.size[i])
            if action in (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP):
                left.remove(address, size)
                continue
            kind = SegmentType.SMALL if size == SMALL_SEGMENT else SegmentType.LARGE
            row = (int(trace.stream[i]), int(kind), int(trace.pool_first[i]), int(trace.pool_second[i]))
            left.add(address, size, action == Action.SEGMENT_MAP, row)
        return left.segments(self.device, segments)

    def _blocks(self, segments: Segments) -> Blocks:
        """Return the blocks in use from the beginning to the end."""
        blocks, trace = self.beginning.blocks, self.trace
        traced = np.unique(trace.address[trace.action <= Action.FREE_COMPLETED])
        in_use = (blocks.state == BlockState.ACTIVE_ALLOCATED) | (blocks.state == BlockState.ACTIVE_PENDING_FREE)
        stay = np.flatnonzero(in_use & ~np.isin(blocks.address, traced))
        place = np.searchsorted(segments.address, blocks.address[stay], side="right").astype(np.int64) - 1
        inside = place >= 0
        stay, place = stay[inside], place[inside]
        segments.first_block[:] = np.searchsorted(place, np.arange(len(segments) + 1))
        return replace(
            blocks,
            segment=place.astype(np.int32),
            address=blocks.address[stay],
            size=blocks.size[stay],
            requested_size=blocks.requested_size[stay],
            state=blocks.state[stay],
            stack=blocks.stack[stay],
            extra={},
        )


def _numbered(numbers: NDArray[np.int32], known: int, behind: int) -> NDArray[np.int32]:
    """Return the file's numbers, where 0 means none, as indices; -1 for none, and for what the file does not define."""
    return np.where((numbers > 0) & (numbers < known), numbers + np.int32(behind), np.int32(-1)).astype(np.int32)


class _Memory:
    """Segments by address: plain ones whole, expandable ones as their mapped runs."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._rows: list[tuple[int, bool, tuple[int, int, int, int]]] = []
        """End, whether expandable, and stream, type and pool."""

    def add(self, address: int, size: int, expandable: bool, row: tuple[int, int, int, int]) -> None:
        if address + size > MOST_ADDRESS:
            raise FormatError(f"a segment of the history file ends beyond all addresses: {size} bytes at {address:#x}")
        place = bisect_left(self._starts, address)
        if expandable and place > 0:
            end, grows, other = self._rows[place - 1]
            if grows and end == address and other == row:
                self._rows[place - 1] = (address + size, True, row)
                return
        self._starts.insert(place, address)
        self._rows.insert(place, (address + size, expandable, row))

    def remove(self, address: int, size: int) -> None:
        """Cut a run out of the segment that contains it."""
        place = bisect_right(self._starts, address) - 1
        if place < 0 or self._rows[place][0] <= address:
            return
        start, (end, expandable, row) = self._starts.pop(place), self._rows.pop(place)
        for low, high in ((address + size, end), (start, address)):
            if low < high:
                self._starts.insert(place, low)
                self._rows.insert(place, (high, expandable, row))

    def segments(self, device: int, like: Segments) -> Segments:
        count = len(self._starts)
        address = np.array(self._starts, dtype=np.uint64)
        ends = np.array([end for end, _, _ in self._rows], dtype=np.uint64)
        rows = np.array([row for _, _, row in self._rows], dtype=np.uint64).reshape(count, 4)
        nothing = np.zeros(count, dtype=np.uint64)
        return replace(
            like,
            device=np.full(count, device, dtype=np.int32),
            address=address,
            total_size=ends - address,
            allocated_size=nothing,
            active_size=nothing,
            requested_size=nothing,
            stream=rows[:, 0].copy(),
            type=rows[:, 1].astype(np.uint8),
            pool_first=rows[:, 2].copy(),
            pool_second=rows[:, 3].copy(),
            is_expandable=np.array([grows for _, grows, _ in self._rows], dtype=bool),
            stack=np.full(count, -1, dtype=np.int32),
            first_block=np.zeros(count + 1, dtype=np.int64),
            extra={},
        )
