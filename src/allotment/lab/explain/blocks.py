"""Every block of a recording from birth to death, as far as the calls show: no replay is needed.

Time is counted in moments, as in `lab.timeline`: moment t is when the first t calls have been made.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment.lab.replay.records import Kind
from allotment.lab.replay.run import Recording

__all__ = ["Blocks", "blocks_of"]


@dataclass(frozen=True, slots=True, eq=False)
class Blocks:
    """One row for each life; lives have the numbers of the recording."""

    size: NDArray[np.int64]
    """Requested bytes."""
    begin: NDArray[np.int64]
    """The moment from which on the block exists; 0 if it existed before the history."""
    freed: NDArray[np.int64]
    """The moment from which on the program has freed it; `last` + 1 if it never does."""
    done: NDArray[np.int64]
    """The moment from which on it waits for no other stream; for some blocks later than `freed`."""
    stack: NDArray[np.int32]
    """Number of the stack that allocated it; -1 for none."""
    pool: NDArray[np.int32]
    stream: NDArray[np.uint64]
    last: int
    """The last moment, which is the number of calls."""

    def __len__(self) -> int:
        return len(self.size)

    def at(self, moment: int) -> NDArray[np.int64]:
        """Return the lives that are in use at a moment."""
        return np.flatnonzero((self.begin <= moment) & (self.freed > moment) & (self.size > 0))

    def waiting_at(self, moment: int) -> NDArray[np.int64]:
        """Return the lives that the program has freed and that wait for other streams at a moment."""
        return np.flatnonzero((self.freed <= moment) & (self.done > moment) & (self.size > 0))

    def in_use(self, which: NDArray[np.bool_] | None = None) -> NDArray[np.int64]:
        """Return the bytes in use by moment, of all lives or of those that `which` selects."""
        size = self.size if which is None else np.where(which, self.size, 0)
        change = np.bincount(self.begin, size, self.last + 2) - np.bincount(self.freed, size, self.last + 2)
        return np.rint(np.cumsum(change[: self.last + 1])).astype(np.int64)


def blocks_of(recording: Recording) -> Blocks:
    """Return the blocks of a recording."""
    calls, before = recording.all_calls
    kind, block = calls["kind"], calls["block"]
    last = len(calls) - before
    moment = np.maximum(np.arange(1, len(calls) + 1) - before, 0)
    stack = recording.stacks_of_all()
    count = len(stack)
    size, begin = np.zeros(count, dtype=np.int64), np.full(count, last + 1, dtype=np.int64)
    freed, done = (np.full(count, last + 1, dtype=np.int64) for _ in range(2))
    pool, stream = np.zeros(count, dtype=np.int32), np.zeros(count, dtype=np.uint64)
    asks = np.flatnonzero((kind == Kind.MALLOC) & (block >= 0))
    of = block[asks]
    size[of], begin[of], pool[of], stream[of] = (
        calls["size"][asks],
        moment[asks],
        calls["pool"][asks],
        calls["stream"][asks],
    )
    frees = np.flatnonzero((kind == Kind.FREE) & (block >= 0))
    freed[block[frees]] = done[block[frees]] = moment[frees]
    late = np.flatnonzero((kind == Kind.FREE_SHARED) & (block >= 0))
    freed[block[late]] = moment[late]
    # A free that is due at a call is done before that call.
    done[block[late]] = np.minimum(calls["due"][late].astype(np.int64), last + 1)
    return Blocks(size, begin, freed, np.maximum(done, freed), stack, pool, stream, last)
