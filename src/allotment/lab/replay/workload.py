"""Turns a recorded history into a workload: the calls that caused it.

A history records what an allocator did, a workload what its callers did. Most of the workload follows directly: an
`alloc` is a request, a `free_requested` a free. The rest is inferred:

- A free that completed later than it was requested had to wait for other streams; it completes at the same call again.
- Segments that were released, other than inside a request that then got memory it was refused before, were released
  by `empty_cache`.
- A private pool whose segments were released has no user any more.
- Blocks freed but never allocated, and blocks at the end that were never allocated, were there at the beginning
  (`initial_state.py`); a block's segment shows its pool (`placement.py`).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Collection
from dataclasses import dataclass
from functools import cached_property
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from allotment._core.edge.words import Action
from allotment._formats.torch_snapshot import Trace
from allotment._settings import Settings
from allotment.lab.replay.records import CALL, Kind

__all__ = [
    "ABOUT_MEMORY",
    "NEVER",
    "History",
    "Run",
    "Workload",
    "calls_of",
    "due_calls",
    "lanes",
    "paced",
    "peak_active",
]

SMALL_REQUEST, SMALL_SEGMENT = 1 << 20, 2 << 20
NEVER = np.iinfo(np.int32).max
"""The value of `due` for a free that had not completed when the history ended."""


Run: TypeAlias = tuple[int, int]
"""A range of adjacent entries: the first, and one past the last."""


@dataclass(frozen=True, slots=True)
class Workload:
    """Calls in order, with the entry of the history at which each was made."""

    calls: NDArray[np.void]
    entries: NDArray[np.int64]
    retries: frozenset[Run] = frozenset()
    """Releases that requests made."""


class History:
    """The memory entries of one device, each linked to the life of its block or segment.

    A *life* runs from a block's `alloc` to its `free_completed`; one that begins with a free was there before. `moves`:
    memory may have several addresses, and memory that is unmapped at one and mapped at another is not released.
    """

    def __init__(self, trace: Trace, *, moves: bool = False) -> None:
        self._moves = moves
        self.kept = np.flatnonzero(np.isin(trace.action, ABOUT_MEMORY))
        """The indices of the entries in the file."""
        # The trace's own columns where no entry is left out: a copy would be half as large as the trace.
        of_memory = self.kept if len(self.kept) < len(trace) else slice(None)
        self.action = trace.action[of_memory]
        self.address = trace.address[of_memory]
        self.size = trace.size[of_memory]
        self.stream = trace.stream[of_memory]
        self.pool_ids = (
            np.stack([trace.pool_first[self.kept], trace.pool_second[self.kept]], axis=1) if trace.has_pools else None
        )
        self._tie_blocks()

    def __len__(self) -> int:
        return len(self.action)

    def _tie_blocks(self) -> None:
        of_blocks = np.flatnonzero(self.action <= Action.FREE_COMPLETED)
        order = of_blocks[np.argsort(self.address[of_blocks], kind="stable")]
        action, address = self.action[order], self.address[order]
        is_other = np.ones(len(order), dtype=bool)
        is_other[1:] = address[1:] != address[:-1]
        begins = is_other | (action == Action.ALLOC)
        life = np.cumsum(begins) - 1
        self.lives = int(life[-1]) + 1 if len(life) else 0
        self.life = np.full(len(self), -1, dtype=np.int32)
        """By entry; -1 for entries that are not of a block."""
        self.life[order] = life
        self.first_entry = order[begins]
        """By life."""
        self.was_there = action[begins] != Action.ALLOC
        """By life: whether it began before the history did."""
        self.allocated_at = self._entry_of(Action.ALLOC)
        self.freed_at = self._entry_of(Action.FREE_REQUESTED)
        self.completed_at = self._entry_of(Action.FREE_COMPLETED)
        before = np.full(len(order), -1, dtype=np.int64)
        before[1:] = np.where(begins[1:], -1, action[:-1].astype(np.int64))
        after_free = (action == Action.FREE_COMPLETED) & (before != Action.FREE_REQUESTED) & ~begins
        free_again = (action == Action.FREE_REQUESTED) & (before > Action.ALLOC)
        cut_off = begins[1:] & ~is_other[1:] & (action[:-1] != Action.FREE_COMPLETED)
        self.broken = np.sort(np.concatenate([order[after_free | free_again], order[1:][cut_off]]))
        """Entries that contradict the entries before them at the same address."""
        self.is_reused = np.zeros(self.lives, dtype=bool)
        """By life: whether another one follows at the same address."""
        self.is_reused[life[1:][begins[1:] & ~is_other[1:]] - 1] = True

    def _entry_of(self, action: Action) -> NDArray[np.int64]:
        entries = np.flatnonzero(self.action == action)
        of_life = np.full(self.lives, -1, dtype=np.int64)
        of_life[self.life[entries]] = entries
        return of_life

    @cached_property
    def waited(self) -> NDArray[np.bool_]:
        """Return by life whether its free was requested and then waited for other streams."""
        at_once = self.completed_at == self.freed_at + 1
        unseen = (self.completed_at < 0) & (self.is_reused | ~np.any(self.action == Action.FREE_COMPLETED))
        return np.asarray(((self.freed_at >= 0) & ~at_once & ~unseen) | self.was_pending)

    @cached_property
    def implied_frees(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return lives whose free is missing from the history, and the entries that show an earlier free."""
        unseen = (self.freed_at < 0) & ~self.was_pending
        completed = np.flatnonzero(unseen & (self.completed_at >= 0))
        replaced = np.flatnonzero(unseen & (self.completed_at < 0) & self.is_reused)
        lives = np.concatenate([completed, replaced])
        return lives, np.concatenate([self.completed_at[completed], self.first_entry[replaced + 1]])

    @cached_property
    def was_pending(self) -> NDArray[np.bool_]:
        """Return by life whether its free had been requested before the history began."""
        return np.asarray(self.was_there & (self.freed_at < 0) & (self.completed_at >= 0))

    @cached_property
    def reserved(self) -> NDArray[np.int64]:
        """Return bytes obtained less bytes released after each entry, counted from the beginning of the history."""
        sign = np.zeros(256, dtype=np.int64)
        sign[[Action.SEGMENT_ALLOC, Action.SEGMENT_MAP]] = 1
        sign[[Action.SEGMENT_FREE, Action.SEGMENT_UNMAP]] = -1
        return np.cumsum(sign[self.action] * self.size.astype(np.int64))

    @cached_property
    def releases(self) -> list[Run]:
        """Return the runs of released segments: the first entry, and one past the last."""
        released = np.flatnonzero(np.isin(self.action, _RELEASES))
        if len(released) == 0:
            return []
        starts = np.flatnonzero(np.diff(released, prepend=released[0] - 2) > 1)
        ends = np.append(starts[1:], len(released)) - 1
        runs = [(int(released[start]), int(released[end]) + 1) for start, end in zip(starts, ends, strict=True)]
        return [run for run in runs if not (self._moves and self._is_move(run))]

    def _is_move(self, run: Run) -> bool:
        """Whether the entries right after a run map as much as it unmapped."""
        left = int(self.size[run[0] : run[1]].sum())
        at = run[1]
        while left > 0 and at < len(self) and self.action[at] == Action.SEGMENT_MAP:
            left -= int(self.size[at])
            at += 1
        return left == 0

    @cached_property
    def after_growth(self) -> NDArray[np.int64]:
        """Return by entry, and for the end, the first entry from there on that does not obtain memory."""
        others = np.where(np.isin(self.action, _GROWTH), len(self), np.arange(len(self)))
        return np.append(np.minimum.accumulate(others[::-1])[::-1], len(self))

    def is_surely_retry(self, run: Run) -> bool:
        """Whether a request made this run of releases after the device refused it memory, and then failed."""
        following = self.after_growth[run[1]]
        return bool(following < len(self) and self.action[following] == _OOM)

    def may_be_retry(self, run: Run) -> bool:
        """Whether a request that then got memory may have made this run; an `empty_cache` before it is possible too."""
        return bool(self.after_growth[run[1]] > run[1]) and not self.is_surely_retry(run)

    def likely_retries(self, settings: Settings) -> set[Run]:
        """Return the runs that requests made, as far as the sizes show.

        The device certainly did not refuse if it gave as much at another time; no request was certainly refused if the
        released memory would have served it.
        """
        most = int(self.reserved.max(initial=0))
        found = set()
        for run in self.releases:
            before = int(self.reserved[run[0] - 1]) if run[0] > 0 else 0
            exceeds = self.may_be_retry(run) and before + int(self.size[run[1]]) > most
            if (exceeds and not self._would_have_served(run, settings)) or self.is_surely_retry(run):
                found.add(run)
        return found

    def _would_have_served(self, run: Run, settings: Settings) -> bool:
        """Whether a segment of this run had room for the following request, which then needed no other segment."""
        request = self.after_growth[run[1]]
        if request == len(self) or self.action[request] != _ALLOC:
            return False
        size, released = int(self.size[request]), self.size[run[0] : run[1]]
        is_small = released == SMALL_SEGMENT
        serves = is_small if size <= SMALL_REQUEST else ~is_small & (released >= size)
        if size < settings.max_split_size:
            serves &= released < settings.max_split_size
        else:
            serves &= released < size + settings.max_non_split_rounding
        return bool(np.any(serves & (self.stream[run[0] : run[1]] == self.stream[request])))


ABOUT_MEMORY = [action for action in Action if action <= Action.SEGMENT_UNMAP or action == Action.OOM]
_RELEASES = (Action.SEGMENT_FREE, Action.SEGMENT_UNMAP)
_GROWTH = (Action.SEGMENT_ALLOC, Action.SEGMENT_MAP)
_ALLOC, _OOM = int(Action.ALLOC), int(Action.OOM)  # a member of an enum is slow to look up
_COMPLETING = (Kind.MALLOC, Kind.EMPTY_CACHE, Kind.EMPTY_POOL, Kind.POLL)


def calls_of(
    history: History, pools: NDArray[np.int32], entry_pools: NDArray[np.int32], retries: Collection[Run]
) -> Workload:
    """Return the calls of a history.

    `pools` has each life's pool, `entry_pools` that of each entry about a segment or about being out of memory;
    `retries` are the releases that requests made.
    """
    releases = _releases(history, entry_pools, retries)
    polls = _polls(history, pools, entry_pools)
    # Calls at one entry keep their order in the list.
    parts = [*releases, *polls, *_frees(history), *_requests(history, pools, entry_pools)]
    entries = np.concatenate([part.entries for part in parts])
    order = np.argsort(entries, kind="stable")
    calls = np.concatenate([part.calls for part in parts])[order]
    workload = Workload(calls, entries[order], frozenset(retries))
    _set_due(history, workload)
    return workload


def _calls(kind: Kind, entries: NDArray[np.int64] | list[int]) -> Workload:
    calls = np.zeros(len(entries), dtype=CALL)
    calls["kind"] = kind
    calls["block"] = -1
    return Workload(calls, np.asarray(entries, dtype=np.int64))


def _requests(history: History, pools: NDArray[np.int32], entry_pools: NDArray[np.int32]) -> list[Workload]:
    requests = _calls(Kind.MALLOC, np.flatnonzero(history.action == Action.ALLOC))
    requests.calls["block"] = history.life[requests.entries]
    requests.calls["pool"] = pools[requests.calls["block"]]
    refused = _calls(Kind.MALLOC, np.flatnonzero(history.action == Action.OOM))
    refused.calls["pool"] = entry_pools[refused.entries]
    for part in (requests, refused):
        part.calls["size"] = history.size[part.entries]
        part.calls["stream"] = history.stream[part.entries]
    return [requests, refused]


def _frees(history: History) -> list[Workload]:
    frees = _calls(Kind.FREE, np.flatnonzero(history.action == Action.FREE_REQUESTED))
    frees.calls["block"] = history.life[frees.entries]
    frees.calls["kind"][history.waited[frees.calls["block"]]] = Kind.FREE_SHARED
    lives, entries = history.implied_frees
    implied = _calls(Kind.FREE, entries)
    implied.calls["block"] = lives
    return [implied, frees]


def _releases(history: History, released_pools: NDArray[np.int32], retries: Collection[Run]) -> list[Workload]:
    """Return a call for each run of releases that no request made; a pool's last user leaves before its first
    release."""
    made: list[tuple[Kind, int, int]] = []
    gone: set[int] = set()
    for run in history.releases:
        pools = list(dict.fromkeys(released_pools[run[0] : run[1]].tolist()))
        made.extend((Kind.RELEASE_POOL, run[0], pool) for pool in sorted(set(pools) - gone - {0}))
        gone.update(pools)
        if run in retries:
            continue
        if 0 in pools:
            made.append((Kind.EMPTY_CACHE, run[0], 0))
        else:
            made.extend((Kind.EMPTY_POOL, run[0], pool) for pool in pools)
    part = _calls(Kind.EMPTY_CACHE, [entry for _, entry, _ in made])
    part.calls["kind"] = [kind for kind, _, _ in made]
    part.calls["pool"] = [pool for _, _, pool in made]
    return [part]


def _polls(history: History, pools: NDArray[np.int32], entry_pools: NDArray[np.int32]) -> list[Workload]:
    """Entries where frees completed without a request: none follows, or one of a private pool, which skips events."""
    completed = history.completed_at[history.waited & (history.completed_at >= 0)]
    following = np.append(history.action, Action.FREE_REQUESTED)[completed + 1]
    requests = np.flatnonzero((history.action == Action.ALLOC) | (history.action == Action.OOM))
    of_blocks = np.append(pools, 0)[history.life[requests]]
    of_request = np.where(history.action[requests] == Action.OOM, entry_pools[requests], of_blocks)
    next_pool = np.append(of_request, 0)[np.searchsorted(requests, completed)]
    return [_calls(Kind.POLL, np.sort(completed[(following == Action.FREE_REQUESTED) | (next_pool != 0)]))]


def _set_due(history: History, workload: Workload) -> None:
    """Determine which call completes each free that waited, and give it a stream to wait for.

    Frees that wait for one stream complete in order, so each gets a stream on which that order holds.
    """
    calls = workload.calls
    shared = np.flatnonzero(calls["kind"] == Kind.FREE_SHARED)
    due = due_calls(history, history.completed_at[calls["block"][shared]], workload)
    calls["due"][shared] = due
    calls["stream"][shared] = lanes(due)


def due_calls(history: History, completed_at: NDArray[np.int64], workload: Workload) -> NDArray[np.int32]:
    """Return the calls that complete the frees recorded as completed at these entries; -1 means never."""
    completing = np.flatnonzero(np.isin(workload.calls["kind"], _COMPLETING))
    place = np.searchsorted(workload.entries[completing], completed_at)
    due = np.append(completing, NEVER)[place]
    due[completed_at < 0] = NEVER
    # A free that completed right before a retry or an oom was not complete when the request began, which therefore
    # missed; the allocator waited for it after the refusal.
    refusals = np.zeros(len(history) + 1, dtype=bool)
    refusals[[run[0] for run in workload.retries]] = True
    refusals[:-1] |= history.action == Action.OOM
    entries = np.arange(len(history))
    others = np.where(history.action != Action.FREE_COMPLETED, entries, len(history))
    ends = np.append(np.minimum.accumulate(others[::-1])[::-1], len(history)) if len(history) else others
    was_waited_for = (completed_at >= 0) & (due < NEVER)
    was_waited_for[was_waited_for] = refusals[ends[completed_at[was_waited_for]]]
    due[was_waited_for] += 1
    return due.astype(np.int32)


def lanes(due: NDArray[np.int32]) -> NDArray[np.uint64]:
    """Assign a lane to each, such that `due` never decreases within a lane; uses as few lanes as possible."""
    last: list[int] = []  # of each lane, negated: bisect needs rising values, and the newest lane has the lowest
    taken = np.zeros(len(due), dtype=np.uint64)
    for i, value in enumerate(due.tolist()):
        lane = bisect_left(last, -value)
        if lane == len(last):
            last.append(-value)
        else:
            last[lane] = -value
        taken[i] = lane
    return taken


def paced(calls: NDArray[np.void], pace: float) -> NDArray[np.void]:
    """Return the calls; frees that waited for other streams complete after `pace` times as many calls as recorded.

    Frees that were not complete when the history ended do not complete either.
    """
    shared = np.flatnonzero(calls["kind"] == Kind.FREE_SHARED)
    completing = np.flatnonzero(np.isin(calls["kind"], _COMPLETING))
    due = calls["due"][shared].astype(np.int64)
    wanted = shared + 1 + ((due - shared - 1) * pace).astype(np.int64)
    place = np.minimum(np.searchsorted(completing, wanted), len(completing))
    found = np.where(due == NEVER, NEVER, np.append(completing, NEVER)[place]).astype(np.int32)
    calls = calls.copy()
    calls["due"][shared] = found
    calls["stream"][shared] = lanes(found)
    return calls


def peak_active(
    calls: NDArray[np.void], rounded: Callable[[NDArray[np.uint64]], NDArray[np.uint64]], background: int
) -> int:
    """Return the peak of active bytes if every free completes where the recording has it.

    The first `background` calls are from before the history: their late frees count from its beginning.
    """
    kind, block = calls["kind"], calls["block"]
    requests = np.flatnonzero((kind == Kind.MALLOC) & (block >= 0))
    size = np.zeros(int(block.max(initial=-1)) + 2, dtype=np.int64)
    size[block[requests]] = rounded(np.ascontiguousarray(calls["size"][requests])).astype(np.int64)
    frees = np.flatnonzero(kind == Kind.FREE)
    shared = np.flatnonzero(kind == Kind.FREE_SHARED)
    # A free that is due at a call is done before that call; one that is never due stays.
    due = np.minimum(calls["due"][shared].astype(np.int64) + background, len(calls))
    change = np.zeros(len(calls) + 2, dtype=np.int64)
    np.add.at(change, requests + 1, size[block[requests]])
    np.subtract.at(change, frees + 1, size[block[frees]])
    np.subtract.at(change, due, size[block[shared]])
    return int(np.cumsum(change)[background : len(calls) + 1].max(initial=0))
