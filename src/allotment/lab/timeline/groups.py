"""Groups blocks by line, stack, label, stream, pool or size; the largest groups have names, the rest is one group."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment._formats.torch_snapshot import Stack
from allotment._settings import shortest_size
from allotment._texts import printable
from allotment.lab.explain.holders import UNKNOWN, frame_shown, line_of, python_frames
from allotment.lab.explain.labels import Labels
from allotment.lab.timeline.lives import Lives

__all__ = ["GROUPINGS", "Grouping", "group_lives"]

GROUPINGS = ("line", "frame", "stack", "pool", "stream", "size")
"""Criteria for grouping blocks, besides the labels that the program gave them."""
UNLABELLED = "nothing said"
MOST_NAMED = 15
"""The number of groups that have their own band; the others share one."""
SIZES = tuple(1 << power for power in (12, 16, 20, 21, 23, 24, 26, 28, 30))


@dataclass(frozen=True, slots=True, eq=False)
class Grouping:
    """A band for each life."""

    band: NDArray[np.uint8]
    """By life."""
    names: list[str]
    """By band, the largest first; the rest, if any, is last."""
    has_rest: bool


def group_lives(
    by: str,
    lives: Lives,
    stack_of: NDArray[np.int32],
    stacks: Sequence[Stack],
    pools: Sequence[tuple[int, int]],
    labels: Sequence[Labels],
    at_peak: NDArray[np.int32],
) -> Grouping:
    """Group by one of `GROUPINGS` or by a source of labels.

    `at_peak` are the lives that decide which groups have names.
    """
    label = next((each for each in labels if each.source == by), None)
    if label is not None:
        group, names = label.of_life.astype(np.int64) + 1, [UNLABELLED, *label.names]
    else:
        group, names = _groups(by, lives, stack_of, stacks, pools)
    moments = max(int(lives.end.max(initial=1)), 1)
    duration = lives.freed.astype(np.float64) - lives.begin
    weight = np.bincount(group, lives.requested * duration / moments, minlength=len(names))
    weight += np.bincount(group[at_peak], lives.requested[at_peak], minlength=len(names))
    order = np.argsort(-weight, kind="stable")
    order = order[weight[order] > 0] if np.any(weight > 0) else order[:1]
    has_rest = len(order) > MOST_NAMED
    named = order[:MOST_NAMED]
    rest = len(order) - len(named)
    band_of = np.full(len(names), len(named) if has_rest else 0, dtype=np.uint8)
    band_of[named] = np.arange(len(named))
    kept = [names[i] for i in named.tolist()]
    return Grouping(band_of[group], [*kept, f"{rest:,} others"] if has_rest else kept, has_rest)


def _groups(
    by: str, lives: Lives, stack_of: NDArray[np.int32], stacks: Sequence[Stack], pools: Sequence[tuple[int, int]]
) -> tuple[NDArray[np.int64], list[str]]:
    """Return a number for each life, and the names of the numbers."""
    if by == "pool":
        return lives.pool.astype(np.int64), [_pool_name(pool) for pool in pools]
    if by == "stream":
        handles, group = np.unique(lives.stream, return_inverse=True)
        return group, [f"stream {handle}" for handle in handles.tolist()]
    if by == "size":
        return np.searchsorted(SIZES, lives.requested, "left"), _size_names()
    name_of: dict[str, Callable[[Stack], str]] = {"line": line_of, "frame": _innermost, "stack": _stack_name}
    numbers: dict[str, int] = {UNKNOWN: 0}
    of_stack = [numbers.setdefault(name_of[by](stack), len(numbers)) for stack in stacks]
    return np.array([*of_stack, 0], dtype=np.int64)[stack_of], list(numbers)


def _innermost(stack: Stack) -> str:
    """Return the innermost Python frame, including libraries."""
    frames = python_frames(stack)
    return frame_shown(frames[0]) if frames else UNKNOWN


def _stack_name(stack: Stack) -> str:
    if not stack:
        return UNKNOWN
    named = (f"{frame.name} {frame.filename.rpartition('/')[2]}:{frame.line}" for frame in stack[:6])
    return printable(" < ".join(named))


def _pool_name(pool: tuple[int, int]) -> str:
    return "default pool" if pool == (0, 0) else f"pool ({pool[0]}, {pool[1]})"


def _size_names() -> list[str]:
    words = [shortest_size(size) for size in SIZES]
    between = [f"{low} to {high}" for low, high in pairwise(words)]
    return [f"up to {words[0]}", *between, f"over {words[-1]}"]
