"""Finds the rank of a job that decides, and settings that suit all ranks.

A job runs out of memory when one of its ranks does, so settings are only as good as they are for the worst rank. The
search runs on the rank that needs the most memory as recorded, and then tries the best settings on all ranks.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from allotment.errors import FormatError
from allotment.lab.ranks.figures import Figures, figures_of
from allotment.lab.ranks.workers import Done, for_each_file
from allotment.lab.replay.run import read_recording
from allotment.lab.tune.search import Candidate, Goal, Tuned, ranked, run_ms, try_settings, tune, worth_following

__all__ = ["RankOutcome", "TunedTogether", "deciding_rank", "figures_of_all", "tune_together"]

MOST_FINALISTS = 8
"""Settings that are tried on all ranks."""


@dataclass(frozen=True, slots=True)
class RankOutcome:
    """One rank as recorded and under the best settings."""

    file: str
    recorded_peak_reserved_bytes: int
    peak_reserved_bytes: int
    ooms: int


@dataclass(frozen=True, slots=True)
class TunedTogether:
    """The result of a search for all ranks. Each candidate has the figures of its worst rank."""

    tuned: Tuned
    deciding: str
    """The file of the rank that needs the most memory as recorded."""
    ranks: list[RankOutcome]
    failed: list[Done[Figures]]
    """Files that could not be read."""


def figures_of_all(
    files: Sequence[str],
    device: int | None = None,
    cluster: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
) -> list[Done[Figures]]:
    """Return the figures of each file, or its error; for the device with the longest history, unless given."""
    return for_each_file(files, partial(figures_of, device=device), cluster, progress)


def deciding_rank(figures: Sequence[Figures]) -> Figures:
    """Return the rank that ran out of memory, or else the one that needs the most."""
    return max(figures, key=lambda each: (each.ooms > 0, each.peak_reserved_bytes))


def _tried(file: str, device: int | None, settings: Sequence[str], capacity: int | None) -> list[Candidate]:
    return try_settings(read_recording(file, device), settings, capacity)


def tune_together(
    files: Sequence[str],
    goal: Goal,
    budget: float = 60.0,
    cluster: str | None = None,
    progress: Callable[[str], None] = lambda what: None,
    *,
    device: int | None = None,
    settings: Sequence[str] | None = None,
) -> TunedTogether:
    """Find settings for all of the files; `settings` replaces the list of settings to try.

    Raises FormatError if none of the files can be read.
    """
    began = time.monotonic()
    done = figures_of_all(files, device, cluster, progress)
    read = [each.value for each in done if each.value is not None]
    if not read:
        raise FormatError("; ".join(each.error or "" for each in done))
    worst = deciding_rank(read)
    recording = read_recording(worst.file, device)
    alone = tune(recording, goal, budget, progress, settings)
    finalists = list(dict.fromkeys(each.settings for each in (*alone.candidates[:MOST_FINALISTS], alone.recorded)))
    names = [each.file for each in read]
    capacity = goal.capacity or (alone.failure.capacity if alone.failure is not None else None)
    work = partial(_tried, device=device, settings=finalists, capacity=capacity)
    tried = for_each_file(names, work, cluster, progress)
    of_ranks = [each.value for each in tried if each.value is not None]
    together = [_worst([rank[place] for rank in of_ranks]) for place in range(len(finalists))]
    in_order = ranked(goal, alone.recorded, run_ms(recording), together)
    best = finalists.index(in_order[0].settings)
    _, advice = worth_following(recording, goal, alone.recorded, in_order, capacity, paces=False)
    if alone.growth is not None:
        advice = []
    return TunedTogether(
        tuned=replace(alone, candidates=in_order, advice=advice, seconds=time.monotonic() - began),
        deciding=worst.file,
        ranks=[
            RankOutcome(figures.file, figures.peak_reserved_bytes, rank[best].peak_reserved_bytes, rank[best].ooms)
            for figures, rank in zip(read, of_ranks, strict=True)
        ],
        failed=[each for each in done if each.value is None],
    )


def _worst(of_ranks: Sequence[Candidate]) -> Candidate:
    return Candidate(
        of_ranks[0].settings,
        max(each.peak_reserved_bytes for each in of_ranks),
        max(each.driver_ms for each in of_ranks),
        sum(each.ooms for each in of_ranks),
    )
