"""Tries settings on a recorded run by replay, on all cores, and says which are best for a goal.

As long as there is time for it, every combination is tried on the whole history. Where there is not, by successive
halving: all of them on an eighth of it, the better half on a quarter, and so on; only what was tried on all of it
counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from allotment._settings import Settings
from allotment.errors import RequestError
from allotment.lab.replay.records import Kind
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import Recording, read_capacity
from allotment.lab.showing import Shown, ShownTable
from allotment.lab.tune.candidates import all_candidates, is_ours

__all__ = [
    "Candidate",
    "Goal",
    "Phases",
    "Tuned",
    "candidate_table",
    "order_of",
    "run_ms",
    "try_settings",
    "tune",
    "with_paces",
]

LOADED = 0.9
"""The part of what a run keeps to its end that is allocated when it counts as loaded."""
WORTH_SAYING = 0.01
"""The least part of the memory that another setting has to save in a phase."""
MOST_COMPARED = 6
"""Candidates that are looked at phase by phase."""
FIRST_RUNG = 1 / 8
PACES = (0.0, 0.5, 1.5, 2.0)
"""How late other streams are done, as a part of how late they were."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What counts: fitting on a device, little memory, or little memory for little driver time."""

    name: str
    capacity: int | None = None

    @staticmethod
    def parse(text: str) -> Goal:
        """From "fit:20GiB", "min-memory" or "balanced". Raises RequestError."""
        if text in ("min-memory", "balanced"):
            return Goal(text)
        name, colon, size = text.partition(":")
        if name == "fit" and colon:
            return Goal(text, read_capacity(size))
        raise RequestError(f"unknown goal {text!r}; use fit:SIZE (such as fit:20GiB), min-memory or balanced")


@dataclass(frozen=True, slots=True)
class Candidate:
    """What a run would have been under some settings."""

    settings: str
    """As text; "" are the allocator's own defaults."""
    peak_reserved_bytes: int
    driver_ms: float
    ooms: int
    paced_bytes: tuple[int, int] | None = None
    """The least and the most of `peak_reserved_bytes` by the pace at which other streams are done; see `with_paces`."""

    @property
    def fits(self) -> bool:
        """Whether no request ended out of memory."""
        return self.ooms == 0


@dataclass(frozen=True, slots=True)
class Phases:
    """A run in two phases that are best under different settings, each tried for the whole run."""

    entry: int
    """Of the history: where the second phase begins, with most of what the run keeps allocated by then."""
    loading: Candidate
    """The best for the first phase, with its figures there."""
    after: Candidate


def candidate_table(name: str, candidates: Iterable[Candidate]) -> ShownTable:
    """Candidates as rows."""
    rows = [
        (each.settings or "defaults", each.peak_reserved_bytes, each.driver_ms, each.ooms, each.fits)
        for each in candidates
    ]
    return ShownTable(name, ("settings", "peak_reserved_bytes", "driver_ms", "ooms", "fits"), rows)


@dataclass(frozen=True, slots=True)
class Tuned(Shown):
    """What came of a search."""

    goal: Goal
    recorded: Candidate
    candidates: list[Candidate]
    """Those that were tried on the whole history, the best first."""
    tried: int
    """All that were tried, also those that dropped out on the way."""
    seconds: float
    phases: Phases | None = None
    """Where one setting is best while the run loads, and another afterwards; None where one is best throughout."""

    @property
    def best(self) -> Candidate:
        """The first of the candidates."""
        return self.candidates[0]

    def tables(self) -> list[ShownTable]:
        """The candidates, and the recorded run."""
        return [
            candidate_table(f"{self.tried} settings tried, for {self.goal.name}", self.candidates),
            candidate_table("As recorded", [replace(self.recorded, settings="as recorded")]),
        ]

    @property
    def goal_met(self) -> bool:
        """Whether the best fits, and needs no more memory than was recorded."""
        return self.best.fits


def _candidate(settings: str, result: Result) -> Candidate:
    return Candidate(settings, result.peak_reserved_bytes, result.driver_ms, result.ooms)


def try_settings(
    recording: Recording, settings: Iterable[str], capacity: int | None, share: float = 1.0, until: float = inf
) -> list[Candidate]:
    """A replay under each of the settings, several at a time: replaying lets go of the interpreter.

    Of the first `share` of the history; once the clock is at `until`, no more are begun, but one always is.
    """
    begun: list[str] = []

    def one(text: str) -> Candidate | None:
        if begun and time.monotonic() >= until:
            return None
        begun.append(text)
        return Candidate(text, *recording.trial(Settings.parse(text, compat=recording.compat), capacity, share))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [each for each in pool.map(one, settings) if each is not None]


def with_paces(recording: Recording, candidate: Candidate, capacity: int | None) -> Candidate:
    """A candidate with what it would need if other streams were done sooner or later than recorded.

    A program on a GPU does not run at one pace: of two runs that ask for the same, frees that waited for other streams
    are done at other requests. Nothing is added where no free waited.
    """
    if recording.waiting_frees == 0:
        return candidate
    settings = Settings.parse(candidate.settings, compat=recording.compat)
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda pace: recording.trial(settings, capacity, pace=pace)[0], PACES)
    sizes = [candidate.peak_reserved_bytes, *found]
    return replace(candidate, paced_bytes=(min(sizes), max(sizes)))


def tune(
    recording: Recording,
    goal: Goal,
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda what: None,
    settings: Iterable[str] | None = None,
) -> Tuned:
    """Try settings for `budget` seconds at the most; the few that help most often come first.

    `settings` are those to try instead of all that are worth it.
    """
    began = time.monotonic()
    until = began + budget
    progress("replaying as recorded")
    recorded = _candidate("", recording.replay())
    order = order_of(goal, recorded, run_ms(recording))
    waiting = list(all_candidates(limited=goal.capacity is not None) if settings is None else settings)
    progress("trying settings")
    # What one takes is known after the first few, which are worth it anyway.
    cores = os.cpu_count() or 1
    few, waiting = waiting[: 2 * cores], waiting[2 * cores :]
    begin = time.monotonic()
    candidates = try_settings(recording, few, goal.capacity, until=until)
    each = (time.monotonic() - begin) / max(len(candidates), 1)
    tried = len(candidates)
    share = 1.0 if len(waiting) * each < until - time.monotonic() else FIRST_RUNG
    while waiting and time.monotonic() < until:
        progress(f"trying {len(waiting)} settings" + (f" on {share:.0%} of the history" if share < 1 else ""))
        found = try_settings(recording, waiting, goal.capacity, share, until)
        tried += len(found) if share in (1.0, FIRST_RUNG) else 0
        if share == 1.0:
            candidates += found
            break
        waiting = [one.settings for one in sorted(found, key=order)[: (len(found) + 1) // 2]]
        share = min(1.0, 2 * share)
    candidates.sort(key=order)
    if time.monotonic() < until:
        progress("looking at the pace of other streams")
        own = next((place for place, each in enumerate(candidates) if not is_ours(each.settings)), 0)
        for place in {0, own}:
            candidates[place] = with_paces(recording, candidates[place], goal.capacity)
    progress("looking at phases")
    phases = phases_of(recording, goal, candidates[:MOST_COMPARED]) if time.monotonic() < until else None
    return Tuned(goal, recorded, candidates, tried, time.monotonic() - began, phases)


def phases_of(recording: Recording, goal: Goal, candidates: list[Candidate]) -> Phases | None:
    """Whether the best of some candidates differs between loading and what comes after."""
    call = loaded_at(recording)
    if call is None or len(candidates) < 2:
        return None
    loading: list[Candidate] = []
    after: list[Candidate] = []
    for each in candidates:
        run = recording.replay(Settings.parse(each.settings, compat=recording.compat), goal.capacity)
        edge = min(max(recording.sample_of(call), 1), len(run.reserved) - 1)
        loading.append(replace(each, peak_reserved_bytes=max(run.reserved[:edge], default=0)))
        after.append(replace(each, peak_reserved_bytes=max(run.reserved[edge:], default=0)))
    first, second = _least(loading), _least(after)
    if not (_saves(loading, first, second) and _saves(after, second, first)):
        return None
    return Phases(recording.entry_of(call), loading[first], after[second])


def _least(candidates: list[Candidate]) -> int:
    return min(range(len(candidates)), key=lambda i: (candidates[i].ooms, candidates[i].peak_reserved_bytes, i))


def _saves(candidates: list[Candidate], one: int, other: int) -> bool:
    """Whether one needs so much less than the other that it is worth saying."""
    less = candidates[other].peak_reserved_bytes - candidates[one].peak_reserved_bytes
    return less > WORTH_SAYING * candidates[other].peak_reserved_bytes


def loaded_at(recording: Recording) -> int | None:
    """The call by which most of what a run keeps to its end is allocated; None where it keeps nothing."""
    calls = recording.calls
    freed = np.zeros(int(calls["block"].max(initial=-1)) + 1, dtype=bool)
    freed[calls["block"][np.isin(calls["kind"], (Kind.FREE, Kind.FREE_SHARED)) & (calls["block"] >= 0)]] = True
    requests = np.flatnonzero((calls["kind"] == Kind.MALLOC) & (calls["block"] >= 0))
    kept = requests[~freed[calls["block"][requests]]]
    sizes = np.cumsum(calls["size"][kept].astype(np.float64))
    if len(kept) == 0 or sizes[-1] == 0:
        return None
    return int(kept[np.searchsorted(sizes, LOADED * sizes[-1])])


def run_ms(recording: Recording) -> float:
    """How long the run took, by the times of its history."""
    times = recording.trace.time_us
    return (int(times[-1]) - int(times[0])) / 1000 if len(times) else 0.0


def order_of(goal: Goal, recorded: Candidate, run_ms: float) -> Callable[[Candidate], tuple[float, ...]]:
    """What comes first: fitting, then by goal; among equals the shorter text."""

    def memory_first(candidate: Candidate) -> tuple[float, ...]:
        return (candidate.ooms, candidate.peak_reserved_bytes, candidate.driver_ms, len(candidate.settings))

    def time_first(candidate: Candidate) -> tuple[float, ...]:
        return (candidate.ooms, candidate.driver_ms, candidate.peak_reserved_bytes, len(candidate.settings))

    def both(candidate: Candidate) -> tuple[float, ...]:
        slower = (run_ms - recorded.driver_ms + candidate.driver_ms) / run_ms if run_ms > recorded.driver_ms else 1.0
        return (candidate.ooms, candidate.peak_reserved_bytes * slower, len(candidate.settings))

    return {"min-memory": memory_first, "balanced": both}.get(goal.name, time_first)
