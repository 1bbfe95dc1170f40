"""Memory that grows with every step: how much, which line allocates it, since when, and when it will not fit.

For each line of code this compares the bytes in use between steps. A line grows if they rise in every quarter of the
steps since some step, by about the same in each, and hardly ever fall. A cache that fills up and an optimizer that
makes its state in the first step do not grow: they stop.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment.lab.explain.failure import Failure
from allotment.lab.explain.holders import UNKNOWN, frame_shown
from allotment.lab.explain.kinds import KINDS, KindOfMemory
from allotment.lab.explain.stack_marks import Mark, hook_of
from allotment.lab.explain.steps import Steps
from allotment.lab.explain.study import Study

__all__ = ["Growth", "growth_of"]

LEAST_EDGES = 4
"""Number of moments between steps that a statement about growth needs."""
QUARTERS = 4
EVEN, MOST_UNEVEN = 0.3, 2.2
"""The least and the most that each quarter may rise, as a fraction of the mean."""
EVEN_OF_FEW, MOST_UNEVEN_OF_FEW = 0.6, 1.6
"""The same for few steps: a loop that allocates falling sizes, such as a graph for each batch size, is no leak."""
FALLS = 0.1
"""The fraction of the rise by which it may fall on the way."""
WORTH_SAYING = 0.01
"""The least growth, as a fraction of the peak in use."""
WORTH_SAYING_OF_MANY = 4 << 20
"""The least growth in bytes, if many steps show the same."""
MANY = 8
MOST_EDGES = 1024
MEANT_TO_STAY = (KindOfMemory.PARAMETERS, KindOfMemory.OPTIMIZER, KindOfMemory.WORKSPACES, KindOfMemory.GRAPHS)
"""Loading layer by layer and capturing graph after graph are loops too, whose memory is meant to stay."""
SMALL = 4096
"""A block this small can be a number, such as a loss."""


@dataclass(frozen=True, slots=True)
class GrowingLine:
    """A line of code and what it adds with each step."""

    where: str
    bytes_per_step: int


@dataclass(frozen=True, slots=True)
class Growth:
    """Memory that grows with every step."""

    bytes_per_step: int
    where: str
    """The line that adds most."""
    since_step: int
    """A step of `Steps.count`, counted from 1."""
    runs_out_at_step: int | None
    """The step at which it no longer fits; None if the available memory is unknown."""
    total_bytes: int
    """Bytes added between the first of these steps and the end."""
    kind: str
    """The kind of most of it, see `kinds`."""
    lines: list[GrowingLine]
    """The lines that grow, largest first."""
    holder: str | None
    """The line of a number that is kept in every step too, such as a loss, whose graph may hold the rest."""
    hook: str | None
    """The hook that allocates it, if one does."""


def growth_of(study: Study, failure: Failure | None) -> Growth | None:
    """Return what grows; None if there are no steps, or nothing grows."""
    steps, blocks = study.steps, study.blocks
    if steps is None or len(steps.edges) < LEAST_EDGES:
        return None
    edges = _some(steps.edges)
    between = np.searchsorted(edges, blocks.begin, "left"), np.searchsorted(edges, blocks.freed, "left")
    counts = ~np.isin(study.kinds.of_life, MEANT_TO_STAY)
    lasting = np.flatnonzero((between[1] > between[0]) & (blocks.size > 0) & counts)
    group, names = _groups(study, lasting)
    held = _held(group, blocks.size[lasting], between[0][lasting], between[1][lasting], len(names), len(edges))
    most = int(study.in_use.max(initial=0))
    starts = {number: start for number in range(len(names)) if (start := _grows_since(held[number], most)) is not None}
    if not starts:
        return None
    rises = {number: int(held[number, -1] - held[number, start]) for number, start in starts.items()}
    total, first = sum(rises.values()), max(starts, key=lambda number: rises[number])
    start = starts[first]
    # If a line grows while another shrinks by as much, that is no growth.
    whole = held.sum(axis=0)
    if int(whole[-1] - whole[start]) < total // 2 or not _is_worth_saying(total, most, len(edges) - start):
        return None
    each = (len(steps.edges) - 1) / (len(edges) - 1)
    per_step = {number: int(_usual_rise(held[number, begin:]) / each) for number, begin in starts.items()}
    growing = lasting[np.isin(group, list(starts)) & (blocks.freed[lasting] > edges[-1])]
    growing = growing[blocks.begin[growing] >= edges[start]]
    return Growth(
        bytes_per_step=sum(per_step.values()),
        where=names[first],
        since_step=round(start * each) + 1,
        runs_out_at_step=_last_step(steps, failure),
        total_bytes=total,
        kind=_main_kind(study, growing),
        lines=[GrowingLine(names[number], per_step[number]) for number in sorted(rises, key=lambda n: -rises[n])],
        holder=_holder(study, held, names, lasting, group, edges, start),
        hook=_hook(study, growing),
    )


def _some(edges: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return all edges, or some at equal distances."""
    if len(edges) <= MOST_EDGES:
        return edges
    return edges[np.unique(np.linspace(0, len(edges) - 1, MOST_EDGES).astype(np.int64))]


def _groups(study: Study, lives: NDArray[np.int64]) -> tuple[NDArray[np.int64], list[str]]:
    """Return a number for each of these lives by its line, and the lines."""
    numbers, group = np.unique(study.origins.of_life[lives], return_inverse=True)
    return group.astype(np.int64), [study.origins.lines[number] for number in numbers.tolist()]


def _held(
    group: NDArray[np.int64],
    size: NDArray[np.int64],
    first: NDArray[np.int64],
    end: NDArray[np.int64],
    groups: int,
    edges: int,
) -> NDArray[np.int64]:
    """Return the bytes in use by group and edge."""
    width = edges + 1
    change = np.bincount(group * width + first, size, groups * width)
    change -= np.bincount(group * width + end, size, groups * width)
    return np.rint(np.cumsum(change.reshape(groups, width), axis=1)[:, :edges]).astype(np.int64)


def _grows_since(held: NDArray[np.int64], most: int) -> int | None:
    """Return the edge from which on this rises steadily to the end; None if it does not."""
    last = len(held) - 1
    if held[-1] <= held[:-1].min():
        return None
    tried = range(last - LEAST_EDGES + 2)
    for start in tried if last < 64 else tried[:: max(1, last // 64)]:
        if held[start + 1] > held[start] and _rises_evenly(held[start:]):
            return start if _is_worth_saying(int(held[-1] - held[start]), most, len(held) - start) else None
    return None


def _rises_evenly(held: NDArray[np.int64]) -> bool:
    rise = int(held[-1] - held[0])
    if rise <= 0 or np.any(np.maximum.accumulate(held) - held > FALLS * rise):
        return False
    cuts = np.linspace(0, len(held) - 1, min(QUARTERS, len(held) - 1) + 1).astype(np.int64)
    steps, parts = np.diff(cuts), np.diff(held[cuts])
    rate = parts / steps / (rise / (len(held) - 1))
    least, most = (EVEN, MOST_UNEVEN) if len(held) > MANY else (EVEN_OF_FEW, MOST_UNEVEN_OF_FEW)
    return bool(np.all(rate >= least) and np.all(rate <= most))


def _usual_rise(held: NDArray[np.int64]) -> float:
    """Return what most steps add, if they add the same; else the mean."""
    rises = np.diff(held)
    usual = float(np.median(rises))
    is_usual = np.count_nonzero(np.abs(rises - usual) <= FALLS * usual) >= 0.6 * len(rises)
    return usual if usual > 0 and is_usual else float(rises.mean())


def _is_worth_saying(rise: int, most: int, edges: int) -> bool:
    return rise >= WORTH_SAYING * most or (edges > MANY and rise >= WORTH_SAYING_OF_MANY)


def _last_step(steps: Steps, failure: Failure | None) -> int | None:
    """Return the step in which a request failed."""
    if failure is None:
        return None
    return max(1, int(np.searchsorted(steps.edges, failure.call, "left")))


def _main_kind(study: Study, lives: NDArray[np.int64]) -> str:
    held = np.bincount(study.kinds.of_life[lives], study.blocks.size[lives], len(KINDS))
    return KINDS[int(np.argmax(held))]


def _holder(
    study: Study,
    held: NDArray[np.int64],
    names: list[str],
    lasting: NDArray[np.int64],
    group: NDArray[np.int64],
    edges: NDArray[np.int64],
    start: int,
) -> str | None:
    """Return the line of a small block that stays from each step, and is the last such block of the step."""
    blocks = study.blocks
    kept = (blocks.freed[lasting] > edges[-1]) & (blocks.begin[lasting] >= edges[start])
    small = np.flatnonzero(kept & (blocks.size[lasting] <= SMALL))
    if len(small) == 0:
        return None
    step = np.searchsorted(edges, blocks.begin[lasting], "left")
    order = small[np.argsort(blocks.begin[lasting[small]], kind="stable")]
    last_of_step = {int(step[place]): int(group[place]) for place in order.tolist()}
    lines, counts = np.unique(list(last_of_step.values()), return_counts=True)
    best = int(np.argmax(counts))
    is_in_most = counts[best] >= 0.6 * max(len(edges) - 1 - start, 1)
    name = names[int(lines[best])]
    return name if is_in_most and name != UNKNOWN else None


def _hook(study: Study, lives: NDArray[np.int64]) -> str | None:
    """Return the hook under which most of this was allocated."""
    sizes = study.blocks.size[lives]
    by_hook = (study.origins.marks[lives] & Mark.HOOK) > 0
    if sizes.sum() == 0 or sizes[by_hook].sum() < 0.5 * sizes.sum():
        return None
    stack = study.blocks.stack[lives[by_hook][int(np.argmax(sizes[by_hook]))]]
    frame = hook_of(study.recording.stacks[stack])
    return None if frame is None else frame_shown(frame)
