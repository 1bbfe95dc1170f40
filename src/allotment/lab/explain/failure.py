"""A request that ran out of memory: what was free at that moment, and why it did not serve the request."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import BlockState
from allotment._texts import exact_size
from allotment.lab.explain.holders import UNKNOWN, lines_of_live
from allotment.lab.explain.moments import moment_of
from allotment.lab.replay.gate import MOST_BYTES
from allotment.lab.replay.moment import Moment
from allotment.lab.replay.records import Kind
from allotment.lab.replay.run import Recording

__all__ = ["Failure", "FreeMemory", "first_failure"]

NAMED = 3
"""Number of lines named for one reason."""


@dataclass(frozen=True, slots=True)
class FreeMemory:
    """Memory that was free and did not serve the request."""

    bytes: int
    reason: str


@dataclass(frozen=True, slots=True)
class Failure:
    """A request that was recorded as out of memory."""

    entry: int
    """Index in the file's history."""
    call: int
    size: int
    stream: int
    pool: tuple[int, int]
    frames: list[dict[str, Any]]
    free: list[FreeMemory]
    count: int
    """Number of failed requests: this one and those after it."""
    ends_recording: bool
    """Whether no request was served after the last of them: what the program would have done next is unknown."""
    capacity: int
    """The memory that the allocator certainly could have had: what it held, and what the device had left.

    If that was enough and the request was refused nevertheless, a limit was in force: then it is the most ever held.
    """


def first_failure(recording: Recording) -> Failure | None:
    """Return the first request that was recorded as out of memory; None if there is none."""
    calls = recording.calls
    refused = np.flatnonzero((calls["kind"] == Kind.MALLOC) & (calls["block"] < 0))
    if len(refused) == 0:
        return None
    call = int(refused[0])
    entry, trace = recording.entry_of(call), recording.trace
    stack = int(trace.stack[entry])
    moment = moment_of(recording, call + 1)
    size, stream = int(calls["size"][call]), int(calls["stream"][call])
    pool = recording.pool_id(int(calls["pool"][call]))
    # Such an entry has this figure in place of an address, and the gate has not checked it.
    left = min(int(trace.address[entry]), MOST_BYTES)
    is_limited = left >= size
    had = int(recording.curve()[: call + 1, 1].max(initial=moment.reserved)) if is_limited else moment.reserved + left
    return Failure(
        entry=entry,
        call=call,
        size=size,
        stream=stream,
        pool=pool,
        frames=[frame._asdict() for frame in recording.stacks[stack]] if stack >= 0 else [],
        free=[
            *_free_on_the_device(left, size, had, moment.reserved + size),
            *_free_here(recording, moment, size, stream, pool),
        ],
        count=len(refused),
        ends_recording=not np.any(calls["kind"][refused[-1] + 1 :] == Kind.MALLOC),
        capacity=had,
    )


def _free_on_the_device(left: int, size: int, least: int, most: int) -> list[FreeMemory]:
    """Return what the device had left; if that was enough, say between which sizes the limit was that prevented it."""
    if left == 0:
        return []
    if left < size:
        return [FreeMemory(left, "free on the device: less than requested")]
    limit = f"a limit of {exact_size(least)} to {exact_size(most)} in all, or the driver could not use it"
    return [FreeMemory(left, f"free on the device: enough, so it was prevented by {limit}")]


def _free_here(recording: Recording, moment: Moment, size: int, stream: int, pool: tuple[int, int]) -> list[FreeMemory]:
    free = moment.having(BlockState.INACTIVE)
    in_pool = (free["pool_first"] == pool[0]) & (free["pool_second"] == pool[1])
    on_stream = free["stream"] == stream
    found = []
    pieces = free[in_pool & on_stream]
    if len(pieces):
        small = pieces[pieces["small"] != 0]
        fitting = pieces[(pieces["size"] >= size) & (pieces["small"] == 0)]
        reason = f"in {_count(pieces, 'piece')} of up to {exact_size(int(pieces['size'].max()))}"
        if len(fitting) and size > 1 << 20:
            reason += ", some large enough but not to be split (max_split_size)"
        if len(small):
            reason += f"; {exact_size(int(small['size'].sum()))} of it serve only requests of up to 1 MiB"
        found.append(FreeMemory(int(pieces["size"].sum()), reason + _beside(recording, moment, pieces)))
    for other in np.unique(free["stream"][in_pool & ~on_stream]).tolist():
        kept = free[in_pool & (free["stream"] == other)]
        found.append(FreeMemory(int(kept["size"].sum()), f"kept for stream {other}, the request is on {stream}"))
    elsewhere = free[~in_pool]
    for first, second in np.unique(elsewhere[["pool_first", "pool_second"]]).tolist():
        kept = elsewhere[(elsewhere["pool_first"] == first) & (elsewhere["pool_second"] == second)]
        found.append(FreeMemory(int(kept["size"].sum()), f"in pool ({first}, {second}), the request is for {pool}"))
    waiting = moment.having(BlockState.ACTIVE_PENDING_FREE)
    for other in np.unique(waiting["stream"]).tolist():
        kept = waiting[waiting["stream"] == other]
        reason = f"freed, {_count(kept, 'block')} of stream {other}, and waiting until other streams are done with it"
        found.append(FreeMemory(int(kept["size"].sum()), reason))
    return sorted(found, key=lambda memory: -memory.bytes)


def _count(blocks: NDArray[np.void], what: str) -> str:
    return f"{len(blocks):,} {what}{'s' if len(blocks) != 1 else ''}"


def _beside(recording: Recording, moment: Moment, pieces: NDArray[np.void]) -> str:
    """Return the lines whose blocks lie next to these pieces and keep them from being released, most bytes first."""
    lines, blocks = lines_of_live(recording, moment)
    kept = moment.pinned[moment.live[1]]
    kept[~np.isin(blocks["segment"], pieces["segment"])] = 0
    counted: Counter[str] = Counter()
    for line, size in zip(lines, kept.tolist(), strict=True):
        counted[line] += size
    counted.pop(UNKNOWN, None)
    named = [f"{line} ({exact_size(size)})" for line, size in counted.most_common(NAMED) if size]
    return "; pinned by blocks of " + ", ".join(named) if named else ""
