"""Interprets a PyTorch memory snapshot as typed columns.

A snapshot is a dict of `segments`, `device_traces`, `allocator_settings` and `external_annotations`, pickled and
perhaps gzipped; old versions wrote only the list of segments. From 2.14 on it also has `host_segments` and
`host_traces`, the same for pinned memory, which become a separate snapshot here, with the device `HOST`. The fields of
a trace entry, segment or block differ from version to version: missing ones get a neutral value, unknown ones are kept
in `extra`. The file is untrusted: no object of the pickle is ever built, and `Limits` bounds the cost.
"""

from __future__ import annotations

import io
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import chain
from typing import BinaryIO, TypeAlias, cast

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import HISTORY_MAGIC, Action, BlockState, SegmentType, word_of
from allotment._formats.limits import Limits
from allotment._formats.pickle_columns import Frame, RowReader, Rows, StackTable, TextTable
from allotment._formats.pickle_reader import PickleTree, Value
from allotment._formats.plain import Plain
from allotment._formats.unpack import unpacked
from allotment.errors import FormatError

__all__ = [
    "HOST",
    "Blocks",
    "Frame",
    "Limits",
    "Segments",
    "Snapshot",
    "Trace",
    "naming",
    "read_snapshot",
]

Extra: TypeAlias = dict[str, dict[int, Plain]]
Stack: TypeAlias = tuple[Frame, ...]

MAX_DEVICES = 1024
HOST = -1
"""The device of pinned memory."""


ACTIONS = {word_of(action): int(action) for action in Action if action is not Action.UNKNOWN}
SEGMENT_TYPES = {word_of(kind): int(kind) for kind in SegmentType if kind is not SegmentType.UNKNOWN}
BLOCK_STATES = {word_of(state): int(state) for state in BlockState if state < BlockState.UNMAPPED}
BLOCK_STATES["active_awaiting_free"] = int(BlockState.ACTIVE_PENDING_FREE)


@dataclass(frozen=True, slots=True, eq=False)
class Trace:
    """The history of one device, oldest entry first; every column has one value for each entry."""

    device: int
    action: NDArray[np.uint8]
    """An `Action`."""
    address: NDArray[np.uint64]
    """Of the block or segment; for OOM the device's free memory in bytes."""
    size: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    time_us: NDArray[np.int64]
    pool_first: NDArray[np.uint64]
    pool_second: NDArray[np.uint64]
    stack: NDArray[np.int32]
    """Index into `Snapshot.stacks`, -1 for none."""
    compile_context: NDArray[np.int32]
    """Index into `Snapshot.compile_contexts`, -1 for none."""
    user_metadata: NDArray[np.int32]
    """Index into `Snapshot.user_metadata`, -1 for none."""
    present: frozenset[str]
    """Names of the columns that the file has; the others hold their neutral value throughout."""
    extra: Extra
    """Unknown fields: key, entry, value."""

    def __len__(self) -> int:
        return len(self.action)

    @property
    def has_pools(self) -> bool:
        """Whether entries name their pool; if not, (0, 0) means nothing."""
        return "pool_first" in self.present


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """Memory allocated from the devices, sorted as in the file (by device, then address)."""

    device: NDArray[np.int32]
    address: NDArray[np.uint64]
    total_size: NDArray[np.uint64]
    allocated_size: NDArray[np.uint64]
    active_size: NDArray[np.uint64]
    requested_size: NDArray[np.uint64]
    stream: NDArray[np.uint64]
    type: NDArray[np.uint8]
    """A `SegmentType`."""
    pool_first: NDArray[np.uint64]
    pool_second: NDArray[np.uint64]
    is_expandable: NDArray[np.bool_]
    stack: NDArray[np.int32]
    """Index into `Snapshot.stacks`, -1 for none."""
    first_block: NDArray[np.int64]
    """Segment i has the blocks first_block[i] to first_block[i + 1]; one longer than the other columns."""
    present: frozenset[str]
    extra: Extra

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """The blocks of all segments, in order of address within a segment."""

    segment: NDArray[np.int32]
    """Index of the segment that contains the block."""
    address: NDArray[np.uint64]
    """Where the file has none, the end of the block before."""
    size: NDArray[np.uint64]
    requested_size: NDArray[np.uint64]
    state: NDArray[np.uint8]
    """A `BlockState`."""
    stack: NDArray[np.int32]
    """Index into `Snapshot.stacks`, -1 for none."""
    present: frozenset[str]
    extra: Extra

    def __len__(self) -> int:
        return len(self.address)


@dataclass(frozen=True, slots=True, eq=False)
class Snapshot:
    """A PyTorch memory snapshot."""

    traces: tuple[Trace, ...]
    """One for each device that the file lists, possibly empty."""
    segments: Segments
    blocks: Blocks
    stacks: tuple[Stack, ...]
    """Innermost frame first; equal stacks appear once."""
    compile_contexts: tuple[str, ...]
    user_metadata: tuple[str, ...]
    allocator_settings: dict[str, Plain]
    external_annotations: list[dict[str, Plain]]
    devices: tuple[int, ...]
    """Indices of the devices with a trace or a segment."""
    frame_extra: dict[str, dict[Frame, Plain]]
    """Unknown fields of frames: key, frame, value."""
    extra: dict[str, Plain]
    """Unknown fields of the snapshot itself."""
    first_blocks: Blocks | None = None
    """The blocks before the first entry, if known: for a history file. Their segments are not kept."""
    pinned: Snapshot | None = None
    """Pinned memory, if the snapshot has any, as a snapshot that shares all but its trace, segments and blocks."""


def read_snapshot(
    source: str | os.PathLike[str] | bytes | BinaryIO,
    *,
    limits: Limits = Limits(),  # noqa: B008 (immutable)
) -> Snapshot:
    """Read a snapshot from a path, from bytes or from a binary file; gzipped or not.

    Raises FormatError, one line that says which file, where and what, if the content is damaged, is not a snapshot,
    tries to build objects, or exceeds `limits`; OSError if the file cannot be read.
    """
    if isinstance(source, bytes):
        return _read(io.BytesIO(source), limits)
    if isinstance(source, str | os.PathLike):
        with naming(source), open(source, "rb") as stream:
            return _read(stream, limits)
    return _read(source, limits)


@contextmanager
def naming(source: object) -> Iterator[None]:
    """Add the file name to a FormatError, if `source` is a path."""
    try:
        yield
    except FormatError as error:
        if not isinstance(source, str | os.PathLike):
            raise
        raise FormatError(f"{os.fspath(source)}: {error}") from error.__cause__


def _read(stream: BinaryIO, limits: Limits) -> Snapshot:
    pieces = unpacked(stream, limits)
    first = next(pieces, b"")
    if first.startswith(HISTORY_MAGIC):
        from allotment._formats.history_file import read_history  # imports this module

        return read_history(chain([first], pieces), limits)
    tree = PickleTree(max_memory=limits.max_memory, max_density=limits.max_density, free_memory=limits.free_memory)
    for piece in chain([first], pieces):
        tree.feed(piece)
    return _Interpreter(tree, tree.finish()).snapshot()


class _Interpreter:
    """Knows the field names of a snapshot."""

    def __init__(self, tree: PickleTree, root: Value) -> None:
        self.tree = tree
        self.root = root
        self.stacks = StackTable(tree)
        self.compile_contexts = TextTable(tree)
        self.user_metadata = TextTable(tree)

    def snapshot(self) -> Snapshot:
        fields = self._top_level_fields()
        segments, blocks = self._segments(fields.pop("segments", None))
        traces = self._traces(fields.pop("device_traces", None))
        pinned = self._pinned(fields.pop("host_segments", None), fields.pop("host_traces", None))
        settings = self._settings(fields.pop("allocator_settings", None))
        annotations = self._annotations(fields.pop("external_annotations", None))
        whole = Snapshot(
            traces=traces,
            segments=segments,
            blocks=blocks,
            stacks=self.stacks.stacks,
            compile_contexts=self.compile_contexts.texts,
            user_metadata=self.user_metadata.texts,
            allocator_settings=settings,
            external_annotations=annotations,
            devices=tuple(sorted({trace.device for trace in traces} | set(np.unique(segments.device).tolist()))),
            frame_extra=self.stacks.extra,
            extra={key: value.plain() for key, value in fields.items()},
        )
        if pinned is None:
            return whole
        trace, segments, blocks = pinned
        part = replace(whole, traces=(trace,), segments=segments, blocks=blocks, devices=(HOST,), extra={})
        return replace(whole, pinned=part)

    def _pinned(self, segments: Value | None, trace: Value | None) -> tuple[Trace, Segments, Blocks] | None:
        """None if PyTorch did not record it: then both are empty."""
        for value, name in ((segments, "host_segments"), (trace, "host_traces")):
            if value is not None:
                _expect(value, "list", name)
        if not segments and not trace:
            return None
        rows = self._trace_reader().read([] if trace is None else [trace])
        found = Trace(device=HOST, present=rows.present, extra=rows.extra, **rows.columns)
        return found, *self._segments(segments, of_host=True)

    def _top_level_fields(self) -> dict[str, Value]:
        if self.root.kind == "list":
            return {"segments": self.root}
        if self.root.kind != "dict":
            raise self.root.error(f"not a memory snapshot: it holds {self.root.describe()}, not a dict")
        fields = self.root.fields()
        if not fields.keys() & {"segments", "device_traces"}:
            raise self.root.error("not a memory snapshot: neither 'segments' nor 'device_traces' is in it")
        return fields

    def _traces(self, value: Value | None) -> tuple[Trace, ...]:
        if value is None:
            return ()
        _expect(value, "list", "device_traces")
        if len(value) > MAX_DEVICES:
            raise value.error(f"device_traces lists {len(value)} devices; at most {MAX_DEVICES} are read")
        reader = self._trace_reader()
        traces = []
        for device, entries in enumerate(value):
            rows = reader.read([entries])
            traces.append(Trace(device=device, present=rows.present, extra=rows.extra, **rows.columns))
        return tuple(traces)

    def _trace_reader(self) -> RowReader:
        reader = RowReader("trace entry", self.tree)
        reader.choice("action", "action", choices=ACTIONS, unknown=Action.UNKNOWN, required=True)
        reader.unsigned("address", "addr", "device_free", required=True)
        reader.unsigned("size", "size", required=True)
        reader.unsigned("stream", "stream")
        reader.signed("time_us", "time_us")
        reader.pair("pool_first", "pool_second", "pool_id")
        reader.stack("stack", "frames", table=self.stacks)
        reader.text("compile_context", "compile_context", table=self.compile_contexts)
        reader.text("user_metadata", "user_metadata", table=self.user_metadata)
        return reader

    def _segments(self, value: Value | None, *, of_host: bool = False) -> tuple[Segments, Blocks]:
        reader = RowReader("segment", self.tree)
        if not of_host:
            reader.unsigned("device", "device", maximum=MAX_DEVICES - 1)
        reader.unsigned("address", "address", required=True)
        reader.unsigned("total_size", "total_size", required=True)
        reader.unsigned("allocated_size", "allocated_size")
        reader.unsigned("active_size", "active_size")
        reader.unsigned("requested_size", "requested_size")
        reader.unsigned("stream", "stream")
        reader.choice("type", "segment_type", choices=SEGMENT_TYPES, unknown=SegmentType.UNKNOWN)
        reader.pair("pool_first", "pool_second", "segment_pool_id")
        reader.flag("is_expandable", "is_expandable")
        reader.stack("stack", "frames", table=self.stacks)
        reader.children("blocks", "blocks")
        if value is not None:
            _expect(value, "list", "segments")
        rows = reader.read([] if value is None else [value])
        columns = rows.columns
        columns["device"] = np.full(rows.total, HOST, np.int32) if of_host else columns["device"].astype(np.int32)
        lists = rows.children["blocks"]
        counts = np.zeros(rows.total, dtype=np.int64)
        counts[list(lists)] = [len(blocks) for blocks in lists.values()]
        first_block = np.concatenate([np.zeros(1, dtype=np.int64), np.cumsum(counts)])
        segments = Segments(first_block=first_block, present=rows.present, extra=rows.extra, **columns)
        return segments, self._blocks([lists[row] for row in sorted(lists)], segments)

    def _blocks(self, lists: Sequence[Value], segments: Segments) -> Blocks:
        reader = RowReader("block", self.tree)
        reader.unsigned("address", "address")
        reader.unsigned("size", "size", required=True)
        reader.unsigned("requested_size", "requested_size")
        reader.choice("state", "state", choices=BLOCK_STATES, unknown=BlockState.UNKNOWN, required=True)
        reader.stack("stack", "frames", table=self.stacks)
        rows = reader.read(lists)
        segment = np.repeat(np.arange(len(segments), dtype=np.int32), np.diff(segments.first_block))
        _fill_in_addresses(rows, segment, segments)
        present = rows.present | self._unfold_history(rows)
        return Blocks(segment=segment, present=present, extra=rows.extra, **rows.columns)

    def _unfold_history(self, rows: Rows) -> set[str]:
        """Read requested size and frames from `history`, as in old versions. Return the columns found there."""
        found = set()
        for row, history in rows.extra.get("history", {}).items():
            latest = history[0] if isinstance(history, list) and history else None
            if not isinstance(latest, dict):
                continue
            requested, frames = latest.get("real_size"), _frames_of(latest.get("frames"))
            if isinstance(requested, int) and requested >= 0:
                rows.columns["requested_size"][row] = requested
                found.add("requested_size")
            if frames:
                rows.columns["stack"][row] = self.stacks.number(frames)
                found.add("stack")
        return found

    def _settings(self, value: Value | None) -> dict[str, Plain]:
        if value is None:
            return {}
        _expect(value, "dict", "allocator_settings")
        return {key: field.plain() for key, field in value.fields().items()}

    def _annotations(self, value: Value | None) -> list[dict[str, Plain]]:
        if value is None:
            return []
        _expect(value, "list", "external_annotations")
        if len(value) > self.tree.row_budget:
            raise value.error("more external_annotations than a file of this size can hold")
        annotations = []
        for item in value:
            annotation = item.plain()
            if not isinstance(annotation, dict) or not all(isinstance(key, str) for key in annotation):
                raise item.error(f"an external annotation is {item.describe()}, not a dict of named values")
            annotations.append(cast("dict[str, Plain]", annotation))
        return annotations


def _expect(value: Value, kind: str, what: str) -> None:
    if value.kind != kind:
        raise value.error(f"{what} is {value.describe()}, not a {kind}")


def _fill_in_addresses(rows: Rows, segment: NDArray[np.int32], segments: Segments) -> None:
    """Compute the addresses that old versions do not give: blocks tile their segment."""
    address, size = rows.columns["address"], rows.columns["size"]
    start = np.cumsum(size) - size
    offset = start - start[segments.first_block[segment]]
    np.copyto(address, segments.address[segment] + offset, where=address == 0)


def _frames_of(value: Plain) -> Stack:
    """Return the frames of an old block's history; none if their form is different."""
    if not isinstance(value, list):
        return ()
    frames = []
    for frame in value:
        match frame:
            case {"name": str(name), "filename": str(filename), "line": int(line)}:
                frames.append(Frame(name, filename, line))
            case _:
                return ()
    return tuple(frames)
