"""Finds models in memory, by the lines that made their parameters, and whether a model exists twice."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment.lab.explain.holders import frame_shown, own_frames
from allotment.lab.explain.kinds import KindOfMemory
from allotment.lab.explain.study import Study

__all__ = ["TwoModels", "models_there_twice"]

LARGE_MODEL = 0.2
"""The fraction of all parameters that a model must have."""
ENOUGH = 0.3
"""The fraction of memory in use that parameters must have."""
EQUAL = 0.8
"""The fraction of the smaller model's sizes that must also occur in the larger one."""
MOST_DEPTH = 12


@dataclass(frozen=True, slots=True)
class TwoModels:
    """Two sets of parameters that are in memory at once."""

    first: str
    """The line that made it."""
    first_bytes: int
    second: str
    second_bytes: int
    are_equal: bool
    """Whether they have blocks of the same sizes."""


def models_there_twice(study: Study, moment: int) -> list[TwoModels]:
    """Return the two largest models at a moment, if there are two."""
    blocks = study.blocks
    there = blocks.at(moment)
    lives = there[(study.kinds.of_life[there] == KindOfMemory.PARAMETERS) & (blocks.stack[there] >= 0)]
    if blocks.size[lives].sum() < ENOUGH * blocks.size[there].sum() or len(lives) < 2:
        return []
    groups = _models(study, lives)
    if len(groups) < 2:
        return []
    (first, of_first), (second, of_second) = groups[:2]
    sizes = [Counter(blocks.size[lives].tolist()) for lives in (of_first, of_second)]
    bytes_of = [sum(size * count for size, count in each.items()) for each in sizes]
    common = sum(size * min(count, sizes[1][size]) for size, count in sizes[0].items())
    return [TwoModels(first, bytes_of[0], second, bytes_of[1], are_equal=common >= EQUAL * min(bytes_of))]


def _models(study: Study, lives: NDArray[np.int64]) -> list[tuple[str, NDArray[np.int64]]]:
    """Return parameters by the line that made them, largest first.

    Uses the first frame, from the outermost inwards, that distinguishes two large groups.
    """
    blocks, stacks = study.blocks, study.recording.stacks
    frames: dict[int, Sequence[Frame]] = {
        number: own_frames(stacks[number])[::-1] for number in np.unique(blocks.stack[lives]).tolist()
    }
    total = blocks.size[lives].sum()
    for depth in range(1, MOST_DEPTH + 1):
        grouped: dict[Sequence[Frame], list[int]] = defaultdict(list)
        for life, stack in zip(lives.tolist(), blocks.stack[lives].tolist(), strict=True):
            grouped[tuple(frames[stack][:depth])].append(life)
        large = [
            (frame_shown(path[-1]), np.array(members, dtype=np.int64))
            for path, members in grouped.items()
            if path and blocks.size[members].sum() >= LARGE_MODEL * total
        ]
        if len(large) >= 2:
            return sorted(large, key=lambda pair: -int(blocks.size[pair[1]].sum()))
    return []
