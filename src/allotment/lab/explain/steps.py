"""Finds the steps of a run: a history that repeats itself, such as that of a training loop.

A stack (or a size, without stacks) that makes one request in every step is an *anchor*: between two of its requests
lies one step. The best anchor is the one between whose requests most other stacks make equally many requests, at about
equal distances. If PyTorch noted each `Optimizer.step`, those notes are tried as well. Without stacks, and with sizes
that vary from step to step, no anchor may be found: then the moments at which little is in use divide the run, if they
come at regular distances.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment.lab.explain.blocks import Blocks
from allotment.lab.explain.labels import Labels, labels_of
from allotment.lab.replay.run import Recording

__all__ = ["Steps", "steps_of"]

LEAST_STEPS = 3
MOST_TRIED = 40
"""Numbers of steps that are tried."""
MOST_COUNTED = 100_000
"""Requests that are counted for each of them."""
ENOUGH = 0.5
"""The fraction of all requests that must return in every step."""
AS_GOOD = 0.97
"""If one of two explanations is this good relative to the other, the one with more steps wins."""
USUAL = 0.8
"""The fraction of the steps in which a stack must make equally many requests."""
SLACK = 0.1
"""By which fraction a stack's number of requests may vary from step to step and still count as equal."""
COVERED = 0.4
"""The fraction of the history that must lie between anchors."""
VALLEY_SIDE = 0.75
"""The fraction of the time in which less is in use than at the side of a valley."""
VALLEY = 0.3
"""Memory in use in a valley, as a fraction of that at its side."""
NEAR = 0.25
"""By which fraction of a step its lowest moment may be displaced from that of most steps."""
TEARDOWN = 0.03
"""The fraction of the history that may be the end of a program."""
OPTIMIZER_STEP = "Optimizer.step#"


@dataclass(frozen=True, slots=True, eq=False)
class Steps:
    """The positions of the steps of a run."""

    count: int
    """Number of steps begun."""
    entries_each: int
    """Median number of history entries of a step."""
    edges: NDArray[np.int64]
    """Ascending moments between steps, each with the least passing memory in use: step i + 1 lies between edge i and
    the next. The last step may be incomplete."""
    passing: NDArray[np.int64]
    """By moment: bytes in use of blocks that live for at most two steps."""

    def of(self, moments: NDArray[np.int64]) -> NDArray[np.int64]:
        """Return the number of the step that contains each moment, from 1 on; 0 before the first edge."""
        return np.searchsorted(self.edges, moments, "left")


def steps_of(recording: Recording, blocks: Blocks, labels: list[Labels] | None = None) -> Steps | None:
    """Return the steps of a recording; None if its history does not repeat itself."""
    born = np.flatnonzero((blocks.begin >= 1) & (blocks.begin <= blocks.last) & (blocks.size > 0))
    born = born[np.argsort(blocks.begin[born], kind="stable")]
    anchors = _anchors(recording, blocks, born, labels_of(recording) if labels is None else labels)
    if anchors is None:
        return None
    moments = blocks.begin[born[anchors]]
    entries = recording.call_entries[moments - 1]
    # Blocks that a program makes once and keeps would move the edge of the first step to before they existed.
    passing = blocks.in_use(blocks.freed - blocks.begin <= 2 * np.median(np.diff(moments)))
    return Steps(len(anchors), int(np.median(np.diff(entries))), _edges(moments, passing, blocks), passing)


def _anchors(
    recording: Recording, blocks: Blocks, born: NDArray[np.int64], labels: list[Labels]
) -> NDArray[np.int64] | None:
    """Return positions in `born`, one in each step; None if there are no steps."""
    if len(born) < 2 * LEAST_STEPS:
        return None
    stack = blocks.stack[born].astype(np.int64)
    sizes = _numbered(blocks.size[born]) * len(np.unique(blocks.stream[born])) + _numbered(blocks.stream[born])
    found: list[tuple[float, NDArray[np.int64]]] = []
    for tokens in (stack + 1, _numbered(sizes)):
        if int(tokens.max()) > 0:
            found += _candidates(tokens, _optimizer_steps(born, labels))
        if found and max(score for score, _ in found) >= ENOUGH:
            break
    good = [(score, anchors) for score, anchors in found if score >= ENOUGH]
    if not good:
        return _between_valleys(blocks.begin[born], blocks.in_use())
    # A stack that makes requests only from some step on would be a perfect anchor for the rest of the run.
    ranks = [(score * (anchors[-1] - anchors[0] + np.median(np.diff(anchors))), anchors) for score, anchors in good]
    best = max(rank for rank, _ in ranks)
    chosen: NDArray[np.int64] = max((anchors for rank, anchors in ranks if rank >= AS_GOOD * best), key=len)
    return chosen


def _numbered(values: NDArray[np.generic]) -> NDArray[np.int64]:
    """Number equal values equally, from zero on."""
    numbers: NDArray[np.int64] = np.unique(values, return_inverse=True)[1].ravel().astype(np.int64)
    return numbers


def _optimizer_steps(born: NDArray[np.int64], labels: list[Labels]) -> list[NDArray[np.int64]]:
    """Return the first requests of each `Optimizer.step`, if PyTorch noted them."""
    scopes = next((each for each in labels if each.source == "scope"), None)
    if scopes is None:
        return []
    named = [number for number, name in enumerate(scopes.names) if name.startswith(OPTIMIZER_STEP)]
    found = []
    for number in named:
        inside = scopes.of_life[born] == number
        found.append(np.flatnonzero(inside & ~np.concatenate([[False], inside[:-1]])))
    return found


def _candidates(tokens: NDArray[np.int64], noted: list[NDArray[np.int64]]) -> list[tuple[float, NDArray[np.int64]]]:
    """Return how well each of some anchors explains the requests, whose tokens are given in order."""
    order = np.argsort(tokens, kind="stable")
    counts = np.bincount(tokens)
    starts = np.concatenate([[0], np.cumsum(counts)])
    counted = _some_tokens(counts)
    tried: dict[int, tuple[float, NDArray[np.int64]]] = {}
    common, tokens_with = np.unique(counts[(counts >= LEAST_STEPS)], return_counts=True)
    for count in common[np.argsort(-tokens_with * 1.0, kind="stable")][:MOST_TRIED].tolist():
        best = min(
            (order[starts[token] : starts[token + 1]] for token in np.flatnonzero(counts == count)[:8].tolist()),
            key=_unevenness,
        )
        tried[count] = _score(best, order, starts, counted, len(tokens)), best
    for anchors in noted:
        if len(anchors) >= LEAST_STEPS:
            tried[-len(anchors)] = _score(anchors, order, starts, counted, len(tokens)), anchors
    return list(tried.values())


def _some_tokens(counts: NDArray[np.int64]) -> list[int]:
    """Return tokens to count: all, or as many as stay below a bound, spread over all numbers of requests."""
    by_count = np.argsort(counts, kind="stable")
    by_count = by_count[counts[by_count] > 0]
    stride = max(1, int(counts.sum()) // MOST_COUNTED)
    return [int(token) for token in by_count[::-1][stride // 2 :: stride]] if stride > 1 else by_count.tolist()


def _unevenness(places: NDArray[np.int64]) -> float:
    gaps = np.diff(places)
    return float(gaps.std() / gaps.mean())


def _score(
    anchors: NDArray[np.int64],
    order: NDArray[np.int64],
    starts: NDArray[np.int64],
    counted: list[int],
    total: int,
) -> float:
    """Return the fraction of requests that return in every interval between anchors, if these have about one length."""
    gaps = np.diff(anchors)
    middle = float(np.median(gaps))
    if (anchors[-1] - anchors[0] + middle) < COVERED * total or middle < 2:
        return 0.0
    even = float(gaps[(gaps >= 0.5 * middle) & (gaps <= 2 * middle)].sum() / gaps.sum())
    explained = seen = 0
    for token in counted:
        places = order[starts[token] : starts[token + 1]]
        window = np.searchsorted(anchors, places, "right") - 1
        window = window[(window >= 0) & (window < len(gaps))]
        if len(window) == 0:
            continue
        seen += len(window)
        each = np.bincount(window, minlength=len(gaps))
        usual = int(np.median(each))
        if usual > 0 and np.count_nonzero(np.abs(each - usual) <= SLACK * usual) >= USUAL * len(gaps):
            explained += len(window)
    return even * explained / seen if seen else 0.0


def _between_valleys(born: NDArray[np.int64], in_use: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Return the first requests after each time at which little is in use; None if these times are not regular.

    Memory that stays to the end is ignored, so that a leak does not hide the valleys; so is the end itself, where a
    program may free everything.
    """
    in_use = in_use[: int(len(in_use) * (1 - TEARDOWN))]
    if len(in_use) == 0:
        return None
    above = in_use - np.minimum.accumulate(in_use[::-1])[::-1]
    high = np.quantile(above, VALLEY_SIDE)
    if high <= 0:
        return None
    # A step begins where the curve is high again for the first time after it was low.
    level = np.where(above >= high, 1, np.where(above <= VALLEY * high, -1, 0))
    marks = np.flatnonzero(level)
    rises = marks[1:][(level[marks[1:]] == 1) & (level[marks[:-1]] == -1)]
    anchors = np.unique(np.minimum(np.searchsorted(born, rises), len(born) - 1))
    if len(anchors) <= LEAST_STEPS:
        return None
    gaps = np.diff(anchors)
    middle = np.median(gaps)
    even = np.abs(gaps - middle) <= 2 * SLACK * middle
    covers = anchors[-1] - anchors[0] + middle >= COVERED * len(born)
    return anchors if covers and np.count_nonzero(even) >= USUAL * len(gaps) else None


def _edges(anchors: NDArray[np.int64], passing: NDArray[np.int64], blocks: Blocks) -> NDArray[np.int64]:
    """Return the moments between steps: with least passing memory between each two anchors, before the first, after the
    last.

    Most steps agree on the distance of this moment from the anchor. The others, above all the first step and an
    incomplete one, use the distance of those.
    """
    gaps = np.diff(anchors)
    middle = int(np.median(gaps))
    lowest = np.array([_last_lowest(passing[first:end]) for first, end in pairwise(anchors.tolist())])
    part = float(np.median(lowest / gaps))
    usual = np.abs(lowest / gaps - part) <= NEAR
    inner = anchors[:-1] + np.where(usual, lowest, (part * gaps).astype(np.int64))
    before = max(0, int(anchors[0]) - middle) if part == 0 else max(0, int(anchors[0] - (1 - part) * middle))
    first = before + _last_lowest(passing[before : int(anchors[0])])
    after = int(anchors[-1] + part * middle)
    edges = np.unique(np.concatenate([[first], inner, [after] if after <= blocks.last else []]).astype(np.int64))
    # The end, where a program frees everything, is not a moment between steps.
    in_use = blocks.in_use()[edges]
    ends_there = len(edges) > LEAST_STEPS and in_use[-1] < (1 - SLACK) * in_use[-2]
    return edges[:-1] if ends_there else edges


def _last_lowest(values: NDArray[np.int64]) -> int:
    """Return the last position of the lowest value: what precedes the next rise belongs to the step that ends."""
    return len(values) - 1 - int(np.argmin(values[::-1]))
