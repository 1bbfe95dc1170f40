"""Tries settings on a recorded run by replay, on all cores, and says which are best for a goal.

If there is time, every combination is tried on the whole history. Otherwise by successive halving: all of them on an
eighth of it, the better half on a quarter, and so on; only settings tried on the whole history count.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import inf

import numpy as np

from allotment._settings import Settings
from allotment.errors import RequestError
from allotment.lab.explain.failure import Failure, first_failure
from allotment.lab.explain.growth import Growth, growth_of
from allotment.lab.explain.study import Study
from allotment.lab.notebook import NotebookResult, NotebookTable
from allotment.lab.replay.records import Kind
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import Recording, read_capacity
from allotment.lab.tune.candidates import FEW, all_candidates, is_ours

__all__ = [
    "Candidate",
    "Goal",
    "Phases",
    "Tuned",
    "as_recorded",
    "candidate_table",
    "order_of",
    "ranked",
    "run_ms",
    "try_settings",
    "tune",
    "worth_following",
]

LOADED = 0.9
"""A run counts as loaded once this fraction of what it keeps to its end is allocated."""
WORTH_SAYING = 0.01
"""The smallest saving that is worth other settings, as a fraction, for a phase or the whole run."""
MUCH_CHEAPER = 0.03
"""How much more memory settings may need if they halve the driver time."""
MOST_ADVICE = 3
"""Number of candidates worth following that are named."""
MOST_COMPARED = 6
"""Number of candidates that are examined phase by phase."""
FIRST_RUNG = 1 / 8
PACES = (0.0, 0.5, 1.5, 2.0)
"""When other streams finish, as a fraction of the recorded delay."""


@dataclass(frozen=True, slots=True)
class Goal:
    """What to optimize: fitting on a device, little memory, or little memory with little driver time."""

    name: str
    capacity: int | None = None

    @staticmethod
    def parse(text: str) -> Goal:
        """Parse "fit:20GiB", "min-memory" or "balanced". Raises RequestError."""
        if text in ("min-memory", "balanced"):
            return Goal(text)
        name, colon, size = text.partition(":")
        if name == "fit" and colon:
            return Goal(text, read_capacity(size))
        raise RequestError(f"unknown goal {text!r}; use fit:SIZE (such as fit:20GiB), min-memory or balanced")


@dataclass(frozen=True, slots=True)
class Candidate:
    """A run under some settings, with its figures."""

    settings: str
    """As text; "" are the allocator's own defaults."""
    peak_reserved_bytes: int
    driver_ms: float
    ooms: int
    waits: int = 0
    """How often a stream was made to wait for another one, on the device, to reuse its memory."""
    paced_bytes: tuple[int, int] | None = None
    """Minimum and maximum of `peak_reserved_bytes` over the paces at which other streams finish; see `PACES`."""

    @property
    def fits(self) -> bool:
        """Whether no request ran out of memory."""
        return self.ooms == 0


@dataclass(frozen=True, slots=True)
class Phases:
    """A run in two phases that are best under different settings, each tried for the whole run."""

    entry: int
    """Where the second phase of the history begins: most of what the run keeps is allocated by then."""
    loading: Candidate
    """The best for the first phase, with its figures there."""
    after: Candidate


def candidate_table(name: str, candidates: Iterable[Candidate]) -> NotebookTable:
    """Return candidates as rows."""
    rows = [
        (each.settings or "defaults", each.peak_reserved_bytes, each.driver_ms, each.ooms, each.fits)
        for each in candidates
    ]
    return NotebookTable(name, ("settings", "peak_reserved_bytes", "driver_ms", "ooms", "fits"), rows)


@dataclass(frozen=True, slots=True)
class Tuned(NotebookResult):
    """The result of a search."""

    goal: Goal
    recorded: Candidate
    candidates: list[Candidate]
    """The candidates that were tried on the whole history, the best first."""
    tried: int
    """The number of candidates tried, including those that dropped out."""
    seconds: float
    phases: Phases | None = None
    """Set if one setting is best while the run loads, and another afterwards; None if one is best throughout."""
    advice: list[Candidate] = field(default_factory=list)
    """The candidates that are worth following, the best first; see `worth_following`. None where memory grows."""
    roomy: Candidate | None = None
    """If none fits: the settings that need the least on a device without a limit, and what they need."""
    growth: Growth | None = None
    """Set if memory grows with every step: such a program runs out of it under any settings."""
    failure: Failure | None = None
    """The first request that the recording shows as out of memory; settings were tried on a device of that size."""

    @property
    def best(self) -> Candidate:
        """The first of the candidates."""
        return self.candidates[0]

    def tables(self) -> list[NotebookTable]:
        """Return the candidates, and the recorded run."""
        return [
            candidate_table(f"{self.tried} settings tried, for {self.goal.name}", self.candidates),
            candidate_table("As recorded", [replace(self.recorded, settings="as recorded")]),
        ]

    @property
    def goal_met(self) -> bool:
        """Whether the best fits. Unknown, and so not met, if the recording ends out of memory."""
        return self.best.fits and not self.ends_in_failure

    @property
    def ends_in_failure(self) -> bool:
        """Whether the recording ends with a request that ran out of memory, so that nothing after it was tried."""
        return self.failure is not None and self.failure.ends_recording


def as_recorded(result: Result) -> Candidate:
    """Return the replay of a run as recorded, to compare candidates with."""
    return Candidate("", result.peak_reserved_bytes, result.driver_ms, result.ooms, result.waits)


def try_settings(
    recording: Recording, settings: Iterable[str], capacity: int | None, share: float = 1.0, until: float = inf
) -> list[Candidate]:
    """Replay under each of the settings, several at a time: a replay releases the interpreter lock.

    Replays the first `share` of the history; after `until`, no more replays begin, but one always does.
    """
    begun: list[str] = []

    def one(text: str) -> Candidate | None:
        if begun and time.monotonic() >= until:
            return None
        begun.append(text)
        return Candidate(text, *recording.trial(Settings.parse(text, compat=recording.compat), capacity, share))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return [each for each in pool.map(one, settings) if each is not None]


def worth_following(
    recording: Recording,
    goal: Goal,
    recorded: Candidate,
    candidates: Iterable[Candidate],
    capacity: int | None,
    *,
    paces: bool = True,
) -> tuple[Candidate, list[Candidate]]:
    """Return the recorded run, and the few best candidates that are worth a change.

    These fit and, unless the recorded run failed, are better than it by at least `WORTH_SAYING`. A program on a GPU
    does not always run at the same pace: in two runs with the same requests, frees that waited for other streams
    complete at different requests. So a candidate is omitted if it needs more memory at its worst pace than the
    recorded settings do at theirs. `paces=False` skips that check, which replays the history several times for each
    candidate.
    """
    fails = recorded.ooms > 0 or (goal.capacity is not None and not recording.fits(goal.capacity))
    cost = cost_of(goal, recorded, run_ms(recording))
    enough = inf if fails else (1 - WORTH_SAYING) * cost(recorded)
    worth: list[Candidate] = []
    seen: set[tuple[int, float]] = set()
    for each in ranked(goal, recorded, run_ms(recording), candidates):
        if not each.fits or cost(each) > enough:
            break
        comes_to = (each.peak_reserved_bytes, each.driver_ms)
        if recording.resolved(each.settings) != recording.settings and comes_to not in seen:
            seen.add(comes_to)  # of settings with equal results, the simplest is first
            worth.append(each)
            if not each.settings:
                break  # settings that rank behind the defaults are worse than none
    own = [each for each in worth if not is_ours(each.settings)]
    if paces and recording.waiting_frees > 0 and worth:
        recorded = _with_paces(recording, recorded, recording.settings, None)
        most = inf if fails or goal.capacity is not None else _worst_pace(recorded)
        worth, own = (_steady(recording, some, capacity, most) for some in (worth, own))
    advice = [each for place, each in enumerate(worth) if not any(_is_better(one, each) for one in worth[:place])]
    advice = advice[:MOST_ADVICE]
    if own and own[0] not in advice:
        advice.append(own[0])
    return recorded, advice


def _is_better(one: Candidate, other: Candidate) -> bool:
    """Whether the first needs no more memory, driver time and waits, wherever the second can be used too."""
    if is_ours(one.settings) and not is_ours(other.settings):
        return False
    return (
        one.peak_reserved_bytes <= other.peak_reserved_bytes
        and one.driver_ms <= other.driver_ms
        and one.waits <= other.waits
        and _worst_pace(one) <= _worst_pace(other)
    )


def _steady(recording: Recording, candidates: list[Candidate], capacity: int | None, most: float) -> list[Candidate]:
    """Return the first few candidates that need no more than `most` bytes at any pace."""
    found: list[Candidate] = []
    for candidate in candidates[: 2 * MOST_ADVICE]:
        settings = Settings.parse(candidate.settings, compat=recording.compat)
        candidate = _with_paces(recording, candidate, settings, capacity)
        if _worst_pace(candidate) <= most:
            found.append(candidate)
        if len(found) == MOST_ADVICE:
            break
    return found


def _worst_pace(candidate: Candidate) -> int:
    return candidate.peak_reserved_bytes if candidate.paced_bytes is None else candidate.paced_bytes[1]


def _with_paces(recording: Recording, candidate: Candidate, settings: Settings, capacity: int | None) -> Candidate:
    """Return a candidate with the range of its memory over the paces at which other streams finish."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        found = pool.map(lambda pace: recording.trial(settings, capacity, pace=pace)[0], PACES)
        peaks = [candidate.peak_reserved_bytes, *found]
    return replace(candidate, paced_bytes=(min(peaks), max(peaks)))


def tune(
    recording: Recording,
    goal: Goal,
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda what: None,
    settings: Iterable[str] | None = None,
) -> Tuned:
    """Try settings for at most `budget` seconds; the ones that help most often come first.

    `settings` replaces the list of settings to try.
    """
    began = time.monotonic()
    until = began + budget
    progress("replaying as recorded")
    recorded = as_recorded(recording.replay())
    failure = first_failure(recording)
    # If the run failed, use the device that it had: on a larger one every setting would seem to fit.
    capacity = goal.capacity or (failure.capacity if failure is not None else None)
    order = order_of(goal, recorded, run_ms(recording))
    waiting = list(all_candidates(limited=capacity is not None) if settings is None else settings)
    progress("trying settings")
    # The first few, which are worth trying anyway, show how long one takes.
    cores = os.cpu_count() or 1
    few, waiting = waiting[: 2 * cores], waiting[2 * cores :]
    begin = time.monotonic()
    candidates = try_settings(recording, few, capacity, until=until)
    each = (time.monotonic() - begin) / max(len(candidates), 1)
    tried = len(candidates)
    share = 1.0 if len(waiting) * each < until - time.monotonic() else FIRST_RUNG
    while waiting and time.monotonic() < until:
        progress(f"trying {len(waiting)} settings" + (f" on {share:.0%} of the history" if share < 1 else ""))
        found = try_settings(recording, waiting, capacity, share, until)
        tried += len(found) if share in (1.0, FIRST_RUNG) else 0
        if share == 1.0:
            candidates += found
            break
        waiting = [one.settings for one in sorted(found, key=order)[: (len(found) + 1) // 2]]
        share = min(1.0, 2 * share)
    candidates = ranked(goal, recorded, run_ms(recording), candidates)
    progress("trying other paces of streams")
    is_early = time.monotonic() < until
    growth = growth_of(Study(recording), failure)
    recorded, advice = worth_following(recording, goal, recorded, candidates, capacity, paces=is_early)
    if growth is not None:
        advice = []
    looked_at = {each.settings: each for each in advice}
    candidates = [looked_at.get(each.settings, each) for each in candidates]
    roomy = None
    if not candidates[0].fits:
        progress("looking for a device that is large enough")
        few = [each.settings for each in sorted(candidates, key=lambda each: each.ooms)[:MOST_COMPARED]]
        roomy = min(try_settings(recording, [*few, *FEW], None), key=lambda each: each.peak_reserved_bytes)
    progress("looking at phases")
    phases = phases_of(recording, capacity, candidates[:MOST_COMPARED]) if time.monotonic() < until else None
    return Tuned(goal, recorded, candidates, tried, time.monotonic() - began, phases, advice, roomy, growth, failure)


def phases_of(recording: Recording, capacity: int | None, candidates: list[Candidate]) -> Phases | None:
    """Return the two phases if the best candidate differs between loading and what follows; else None."""
    call = loaded_at(recording)
    if call is None or len(candidates) < 2:
        return None
    loading: list[Candidate] = []
    after: list[Candidate] = []
    for each in candidates:
        run = recording.replay(Settings.parse(each.settings, compat=recording.compat), capacity)
        edge = min(max(recording.sample_of(call), 1), len(run.reserved) - 1)
        whole = replace(each, paced_bytes=None)  # the range is of the whole run
        loading.append(replace(whole, peak_reserved_bytes=max(run.reserved[:edge], default=0)))
        after.append(replace(whole, peak_reserved_bytes=max(run.reserved[edge:], default=0)))
    first, second = _least(loading), _least(after)
    if not (_saves(loading, first, second) and _saves(after, second, first)):
        return None
    return Phases(recording.entry_of(call), loading[first], after[second])


def _least(candidates: list[Candidate]) -> int:
    return min(range(len(candidates)), key=lambda i: (candidates[i].ooms, candidates[i].peak_reserved_bytes, i))


def _saves(candidates: list[Candidate], one: int, other: int) -> bool:
    """Whether one needs enough less than the other to be worth reporting."""
    less = candidates[other].peak_reserved_bytes - candidates[one].peak_reserved_bytes
    return less > WORTH_SAYING * candidates[other].peak_reserved_bytes


def loaded_at(recording: Recording) -> int | None:
    """Return the call by which most of what a run keeps to its end is allocated; None if it keeps nothing."""
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
    """Return the duration of the run, from the times in its history."""
    times = recording.trace.time_us
    return (int(times[-1]) - int(times[0])) / 1000 if len(times) else 0.0


def cost_of(goal: Goal, recorded: Candidate, run_ms: float) -> Callable[[Candidate], float]:
    """Return the score for a goal, lower is better: memory, the run's time, or their product."""

    def time(candidate: Candidate) -> float:
        return max(run_ms - recorded.driver_ms, 0.0) + candidate.driver_ms

    def memory(candidate: Candidate) -> float:
        return candidate.peak_reserved_bytes

    def both(candidate: Candidate) -> float:
        return memory(candidate) * (time(candidate) if run_ms > recorded.driver_ms else 1.0)

    return {"min-memory": memory, "balanced": both}.get(goal.name, time)


def order_of(goal: Goal, recorded: Candidate, run_ms: float) -> Callable[[Candidate], tuple[float, ...]]:
    """Return the sort key: fitting, then the goal's score, then less memory, less driver time, shorter text."""
    cost = cost_of(goal, recorded, run_ms)

    def order(candidate: Candidate) -> tuple[float, ...]:
        ties = (candidate.peak_reserved_bytes, candidate.driver_ms, len(candidate.settings))
        return (candidate.ooms, cost(candidate), *ties)

    return order


def ranked(goal: Goal, recorded: Candidate, run_ms: float, candidates: Iterable[Candidate]) -> list[Candidate]:
    """Return candidates, the best first.

    For a balanced choice a little memory is not worth much driver time: of candidates that need about the same memory,
    the one with the least driver time comes first. About the same means 1 % more, or 3 % if the driver time is halved.
    """
    left = sorted(candidates, key=order_of(goal, recorded, run_ms))
    if goal.name != "balanced":
        return left
    found: list[Candidate] = []
    while left:
        best = left[0]
        like_it = [each for each in left if each is best or _costs_less_for_the_same(each, best)]
        found.append(min(like_it, key=lambda each: (each.driver_ms, each.peak_reserved_bytes, len(each.settings))))
        left.remove(found[-1])
    return found


def _costs_less_for_the_same(one: Candidate, best: Candidate) -> bool:
    more = one.peak_reserved_bytes - best.peak_reserved_bytes
    if one.ooms != best.ooms or one.driver_ms >= best.driver_ms:
        return False
    most = MUCH_CHEAPER if 2 * one.driver_ms <= best.driver_ms else WORTH_SAYING
    return more <= most * best.peak_reserved_bytes
