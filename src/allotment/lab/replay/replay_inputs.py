"""The inputs of a replay: the calls, the state before them, and the pools they were for.

Much of it is certain. The rest is assumed; an assumption changes if the recording contradicts it.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action
from allotment._formats.torch_snapshot import Snapshot
from allotment._settings import Settings
from allotment.lab.replay.initial_state import InitialState, initial_state_of
from allotment.lab.replay.loop import Replay
from allotment.lab.replay.placement import SegmentTimeline
from allotment.lab.replay.workload import History, Workload, calls_of

__all__ = ["ReplayInputs"]

ROOMY = 8 << 30
"""The smallest capacity of a device that must not run out."""
MOST_ROOMY = 1 << 44
"""The largest capacity chosen without a request: a device has records for each of its pages."""
MOST_ASSUMPTIONS = 400
MOST_COMPARED = 1 << 23
"""The total of entries compared while assumptions are tried, for a history of any length."""
MOST_POOLS = 4
"""The number of pools tried for one segment, the nearest in time first."""
UNKNOWN_POOL = 1 << 32
"""The id of a private pool that left nothing behind."""

FAR_FROM_RELEASE = 64
"""Entries before a run of releases that can depend on its cause: completed frees."""

Assumption: TypeAlias = tuple[str, int, int]
"""An assumption: its kind, the segment, entry or run of releases, and the pool's number or a truth value."""


class ReplayInputs:
    """The calls of a history and the state before them, as known or inferred."""

    def __init__(self, history: History, snapshot: Snapshot, device: int, settings: Settings) -> None:
        self.history = history
        self.settings = settings
        self._snapshot = snapshot
        self._device = device
        self._placement = SegmentTimeline(history, snapshot, device)
        self._retries = history.likely_retries(settings)
        self._refused_pools: dict[int, int] = {}
        if self._placement.has_private_pools:
            self._placement.assume_pools(self._segment_of_block)
        self._build()

    def _build(self) -> None:
        """Rebuild the calls and the state before them from the pools as known or assumed now."""
        history, placement = self.history, self._placement
        pool_of_life = np.array([life.pool for life in placement.lives] + [0], dtype=np.int32)
        if placement.has_private_pools:
            pools = pool_of_life[self._segment_of_block]
        else:
            pools = np.zeros(history.lives, dtype=np.int32)
        entry_pools = pool_of_life[placement.of_entry]
        entry_pools[list(self._refused_pools)] = list(self._refused_pools.values())
        self.workload: Workload = calls_of(history, pools, entry_pools, self._retries)
        self.initial: InitialState = initial_state_of(
            history, placement, self._snapshot, self._device, self.settings, self.workload, pools
        )
        self.pool_ids = np.array(placement.pool_ids, dtype=np.uint64).reshape(-1, 2)

    @cached_property
    def _segment_of_block(self) -> NDArray[np.int32]:
        return self._placement.of_blocks()

    def infer(self) -> None:
        """Change assumptions that the recording contradicts.

        At the first difference an assumption near it is wrong: the pool of a released segment, or whether a request or
        `empty_cache` released segments. The change that lets the replay follow the recording furthest is kept, and none
        is tried twice.
        """
        made: set[Assumption] = set()
        tried = 0
        came = self._compare()
        most = min(MOST_ASSUMPTIONS, MOST_COMPARED // (len(self.history) + 1))
        while came is not None and tried < most:
            best, best_came = None, came
            for assumption in [other for other in self._assumptions(*came) if other not in made][: most - tried]:
                tried += 1
                undo = self._assume(assumption)
                then = self._compare()
                self._assume(undo)
                if then is None or then[0] > best_came[0] or (best is None and then[0] == came[0] and then != came):
                    best, best_came = assumption, then or (len(self.history) + 1, None)
            if best is None:
                return
            made.update([best, self._assume(best)])
            came = self._compare()

    def _assume(self, assumption: Assumption) -> Assumption:
        """Change an assumption, and return the previous one."""
        what, about, value = assumption
        if what == "pool of segment":
            life = self._placement.lives[about]
            before, life.pool = life.pool, value
        elif what == "pool of refused request":
            before = self._refused_pools.get(about, 0)
            self._refused_pools[about] = value
        else:
            run = self.history.releases[about]
            before = run in self._retries
            (self._retries.add if value else self._retries.discard)(run)
        self._build()
        return what, about, before

    def _assumptions(self, entry: int, got: tuple[int, int, int, int] | None) -> Iterator[Assumption]:
        """Return alternative assumptions about the recorded entry and the one that the replay made instead."""
        history, placement = self.history, self._placement
        if entry >= len(history):
            return
        for number, run in enumerate(history.releases):
            if run[0] - FAR_FROM_RELEASE <= entry <= run[1] + 1 and history.may_be_retry(run):
                yield "is a retry", number, run not in self._retries
        if history.action[entry] == Action.OOM:
            for pool in range(len(placement.pool_ids)):
                yield "pool of refused request", entry, pool
        addresses = [int(history.address[entry])] + ([got[1]] if got is not None else [])
        for number in dict.fromkeys(placement.segment_at(address, entry) for address in addresses):
            if number < 0 or placement.lives[number].certain:
                continue
            life = placement.lives[number]
            near = sorted(
                (abs(other.begin - life.begin), other.pool)
                for other in placement.lives
                if other.stream == life.stream and other.pool != life.pool and placement.may_be_of(life, other.pool)
            )
            pools = list(dict.fromkeys(pool for _, pool in near))
            if not any(pools):
                pools.append(placement.pool_number((UNKNOWN_POOL, 0)))
            for pool in pools[:MOST_POOLS]:
                yield "pool of segment", number, pool

    def _compare(self) -> tuple[int, tuple[int, int, int, int] | None] | None:
        """Return the first difference."""
        run = self.follower()
        run.run(self.workload.calls, stop_at_difference=True)
        return run.difference

    @property
    def all_calls(self) -> tuple[NDArray[np.void], int]:
        """Return the calls, preceded by those that lead to the state before them, and the number of the latter."""
        initial = self.initial
        calls = np.concatenate([initial.requests, initial.frees, self.workload.calls])
        return calls, len(initial.requests) + len(initial.frees)

    @property
    def roomy(self) -> int:
        """A capacity that no replay of this history reaches."""
        asked, obtained, streams = self._most
        most = obtained + int(self.initial.layouts["size"].sum()) + int(self.initial.requests["size"].sum())
        free_lists = (streams + len(self.pool_ids)) * 4 * self.settings.large_segment_size
        return min(max(ROOMY, 8 * most, 8 * asked) + free_lists, MOST_ROOMY)

    @cached_property
    def _most(self) -> tuple[int, int, int]:
        """Return the largest request, the most memory allocated from the device, and the number of streams."""
        history = self.history
        asked = history.size[(history.action == Action.ALLOC) | (history.action == Action.OOM)].max(initial=0)
        return int(asked), int(history.reserved.max(initial=0)), len(np.unique(history.stream))

    def follower(self, *, journal: bool = False) -> Replay:
        """Return a replay at the first entry, arranged as recorded, that follows the recording from there."""
        history, initial = self.history, self.initial
        run = Replay(self.settings, self.roomy, initial.block_count, self.pool_ids)
        if journal:
            run.keep_journal()
        run.restore(initial.layouts, initial.pieces)
        run.run(initial.frees, background=True)
        run.begin_window()
        run.follow(history.action.copy(), history.address.copy(), history.size.copy(), history.stream.copy())
        return run
