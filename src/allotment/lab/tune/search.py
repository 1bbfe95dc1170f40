"""Tries settings on a recorded run by replay, on all cores, and says which are best for a goal."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice

from allotment._settings import Settings
from allotment.errors import RequestError
from allotment.lab.replay.run import Recording, Result, read_capacity
from allotment.lab.tune.candidates import all_candidates

__all__ = ["Candidate", "Goal", "Tuned", "try_settings", "tune"]


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

    @property
    def fits(self) -> bool:
        """Whether no request ended out of memory."""
        return self.ooms == 0


@dataclass(frozen=True, slots=True)
class Tuned:
    """What came of a search."""

    goal: Goal
    recorded: Candidate
    candidates: list[Candidate]
    """The best first."""
    seconds: float

    @property
    def best(self) -> Candidate:
        return self.candidates[0]

    @property
    def goal_met(self) -> bool:
        """Whether the best fits, and needs no more memory than was recorded."""
        return self.best.fits


def _candidate(settings: str, result: Result) -> Candidate:
    return Candidate(settings, result.peak_reserved_bytes, result.driver_ms, result.ooms)


def try_settings(recording: Recording, settings: Iterable[str], capacity: int | None) -> list[Candidate]:
    """A replay under each of the settings, several at a time: replaying lets go of the interpreter."""

    def one(text: str) -> Candidate:
        return _candidate(text, recording.replay(Settings.parse(text, compat=recording.compat), capacity))

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(one, settings))


def tune(
    recording: Recording,
    goal: Goal,
    budget: float = 60.0,
    progress: Callable[[str], None] = lambda what: None,
) -> Tuned:
    """Try settings until all were tried or `budget` seconds are over; the few that help most often come first."""
    began = time.monotonic()
    recorded = _candidate("", recording.replay())
    waiting = all_candidates(limited=goal.capacity is not None)
    batch = 2 * (os.cpu_count() or 1)
    tried: list[Candidate] = []
    while not tried or time.monotonic() - began < budget:
        settings = list(islice(waiting, batch))
        if not settings:
            break
        progress(f"trying settings: {len(tried)} tried")
        tried += try_settings(recording, settings, goal.capacity)
    order = _order(goal, recorded, _run_ms(recording))
    return Tuned(goal, recorded, sorted(tried, key=order), time.monotonic() - began)


def _run_ms(recording: Recording) -> float:
    times = recording.trace.time_us
    return (int(times[-1]) - int(times[0])) / 1000 if len(times) else 0.0


def _order(goal: Goal, recorded: Candidate, run_ms: float) -> Callable[[Candidate], tuple[float, ...]]:
    """What comes first: fitting, then by goal; among equals the shorter text."""

    def memory_first(candidate: Candidate) -> tuple[float, ...]:
        return (candidate.ooms, candidate.peak_reserved_bytes, candidate.driver_ms, len(candidate.settings))

    def time_first(candidate: Candidate) -> tuple[float, ...]:
        return (candidate.ooms, candidate.driver_ms, candidate.peak_reserved_bytes, len(candidate.settings))

    def both(candidate: Candidate) -> tuple[float, ...]:
        slower = (run_ms - recorded.driver_ms + candidate.driver_ms) / run_ms if run_ms > recorded.driver_ms else 1.0
        return (candidate.ooms, candidate.peak_reserved_bytes * slower, len(candidate.settings))

    return {"min-memory": memory_first, "balanced": both}.get(goal.name, time_first)
