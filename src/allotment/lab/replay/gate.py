"""Validates the numbers of a snapshot before any of them reaches the engine.

A file is untrusted. The reader has ensured that everything in it is a 64-bit number; this module ensures that the
numbers can describe memory, and that the work they cause is proportional to their count.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action, BlockState, word_of
from allotment._formats.torch_snapshot import HOST, Snapshot, Trace
from allotment.errors import FormatError

__all__ = ["MOST_BYTES", "check_segments", "check_snapshot", "device_at_end"]

ADDRESS_END = 1 << 57
"""Higher than every address in a recording."""
STREAM_END = 1 << 63
ALIGNMENT = 512
"""Of a device's blocks; those of pinned memory may lie anywhere."""
MOST_BYTES = 1 << 42
"""More than any device has."""
BYTES_PER_ENTRY = 1 << 30
"""The largest average size of entries, beyond what fills a device once."""

_OF_BLOCKS = (Action.ALLOC, Action.FREE_REQUESTED, Action.FREE_COMPLETED)
_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_OF_SEGMENTS = (Action.SEGMENT_ALLOC, Action.SEGMENT_FREE, Action.SEGMENT_MAP, Action.SEGMENT_UNMAP)


def check_snapshot(snapshot: Snapshot, trace: Trace) -> None:
    """Check that a device's history and final state can describe memory. Raises FormatError."""
    _check_history(trace)
    check_segments(snapshot, trace.device)


def _check_history(trace: Trace) -> None:
    alignment = _alignment_on(trace.device)
    of_blocks = np.isin(trace.action, _OF_BLOCKS)
    of_segments = np.isin(trace.action, _OF_SEGMENTS)
    refused = trace.action == Action.OOM
    placed = of_blocks | of_segments
    no_place = placed & ~_is_place(trace.address, trace.size)
    no_size = (placed | refused) & ((trace.size == 0) | (trace.size >= MOST_BYTES))
    no_segment = of_segments & ((trace.size % alignment != 0) | (trace.address % alignment != 0))
    no_stream = (placed | refused) & (trace.stream >= STREAM_END)
    for found in np.flatnonzero(no_place | no_size | no_segment | no_stream)[:1].tolist():
        what = word_of(Action(trace.action[found]))
        raise FormatError(
            f"entry {found} of the history of {_named(trace.device)} cannot be: {what} of {int(trace.size[found])}"
            f" bytes at {int(trace.address[found]):#x} on stream {int(trace.stream[found]):#x}"
        )
    total = float(trace.size[placed | refused].sum(dtype=np.float64))
    sign = np.where(np.isin(trace.action, _GROWTH), 1.0, np.where(of_segments, -1.0, 0.0))
    held = float(np.cumsum(sign * trace.size).max(initial=0.0))
    if held > MOST_BYTES or total > MOST_BYTES + BYTES_PER_ENTRY * len(trace):
        raise FormatError(
            f"the history of {_named(trace.device)} is about {total:.3g} bytes in {len(trace)} entries and about"
            f" {held:.3g} bytes at a time, which is more than any device has"
        )


def _alignment_on(device: int) -> np.uint64:
    return np.uint64(1 if device == HOST else ALIGNMENT)


def _named(device: int) -> str:
    return "pinned memory" if device == HOST else f"device {device}"


def device_at_end(snapshot: Snapshot, device: int | None) -> int:
    """Return the device to show without a history: the one with the most reserved memory, unless given.

    Raises FormatError if the snapshot has no valid memory of it.
    """
    segments = snapshot.segments
    reserved = {number: int(segments.total_size[segments.device == number].sum()) for number in snapshot.devices}
    chosen = max(reserved, key=lambda number: reserved[number], default=0) if device is None else device
    check_segments(snapshot, chosen)
    if not np.any(segments.device[snapshot.blocks.segment] == chosen):
        raise FormatError(f"the snapshot has neither a history nor memory of device {chosen}")
    return chosen


def check_segments(snapshot: Snapshot, device: int) -> None:
    """Check that a device's segments and blocks can be memory. Raises FormatError."""
    segments, blocks = snapshot.segments, snapshot.blocks
    alignment = _alignment_on(device)
    mine = segments.device == device
    wrong = mine & (
        ~_is_place(segments.address, segments.total_size)
        | (segments.total_size == 0)
        | (segments.total_size % alignment != 0)
        | (segments.address % alignment != 0)
        | (segments.stream >= STREAM_END)
    )
    for found in np.flatnonzero(wrong)[:1].tolist():
        raise FormatError(
            f"segment {found} of the snapshot cannot be: {int(segments.total_size[found])} bytes at"
            f" {int(segments.address[found]):#x} on stream {int(segments.stream[found]):#x}"
        )
    total = float(segments.total_size[mine].sum(dtype=np.float64))
    if total > MOST_BYTES:
        raise FormatError(f"the segments of the snapshot add up to {total:.3g} bytes, which no device has")
    wrong_block = mine[blocks.segment] & (
        ~_is_place(blocks.address, blocks.size)
        | (blocks.size == 0)
        | (blocks.size % alignment != 0)
        | ((blocks.requested_size > blocks.size) & (blocks.state != BlockState.INACTIVE))  # stale there
    )
    for found in np.flatnonzero(wrong_block)[:1].tolist():
        raise FormatError(
            f"block {found} of the snapshot cannot be: {int(blocks.requested_size[found])} of"
            f" {int(blocks.size[found])} bytes at {int(blocks.address[found]):#x}"
        )


def _is_place(address: NDArray[np.uint64], size: NDArray[np.uint64]) -> NDArray[np.bool_]:
    return np.asarray((address > 0) & (address < ADDRESS_END) & (size <= ADDRESS_END - address))
