"""Memory by stack, as the tree of frames that a flame graph draws.

The tree begins with the outermost frame. Each node has three figures, which include all nodes below it: bytes in use at
the peak, bytes allocated in all, and bytes wasted at the peak (rounding, freed memory that waits for other streams, and
free memory that blocks keep from being released).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment._formats.torch_snapshot import Stack
from allotment._texts import printable
from allotment.lab.explain.holders import is_compiled, is_library, python_frames
from allotment.lab.explain.moments import moment_of_peak
from allotment.lab.explain.study import Study
from allotment.lab.replay.moment import Moment

__all__ = ["METRICS", "Flame", "flame_of"]

METRICS = ("peak", "allocated", "waste")
PLUMBING = ("_call_impl", "_wrapped_call_impl")
"""How PyTorch calls a module: frames without information."""
MOST_FRAMES = 200
"""Frames shown of one stack; of a longer one, the outer and the inner half of this number."""
MOST_NODES = 20_000
NO_STACK = "(no stack was recorded)"
BACKWARD = "(backward pass)"
CUT = "(frames left out)"
BESIDE_NO_BLOCK = "(free, beside no block in use)"


@dataclass(frozen=True, slots=True, eq=False)
class Flame:
    """A tree of frames; node 0 is the whole, and a node follows its parent."""

    label: list[str]
    """By node: function, file and line, or a text in brackets."""
    is_own: list[bool]
    """By node: whether it is code of the program, not of a library."""
    parent: list[int]
    """-1 for the whole."""
    totals: dict[str, list[int]]
    """By metric, then by node: its bytes with those of the nodes below it."""

    def as_json(self) -> dict[str, Any]:
        """Return what a page needs: each label once, and columns."""
        numbers: dict[str, int] = {}
        return {
            "label": [numbers.setdefault(text, len(numbers)) for text in self.label],
            "labels": list(numbers),
            "own": [int(own) for own in self.is_own],
            "parent": self.parent,
            **{metric: self.totals[metric] for metric in METRICS},
        }


def flame_of(study: Study, settings: str | None = None) -> Flame:
    """Return the tree of a recording at the peak that `explain` describes: as recorded, or under other settings.

    Raises SettingsError.
    """
    at, moment, _ = moment_of_peak(study.recording, settings, study.in_use)
    peak, waste, beside_no_block = _at_moment(study, moment, at)
    blocks = study.blocks
    allocated = np.where((blocks.begin >= 1) & (blocks.begin <= blocks.last), blocks.size, 0)
    tree = _Tree()
    for path, lives in _paths(study, np.flatnonzero((peak > 0) | (waste > 0) | (allocated > 0))):
        tree.add(path, [int(values[lives].sum()) for values in (peak, allocated, waste)])
    if beside_no_block > 0:
        tree.add([(BESIDE_NO_BLOCK, False)], [0, 0, beside_no_block])
    return tree.flame()


def _at_moment(study: Study, moment: Moment, at: int) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Return bytes in use and wasted at a moment, by life; and the bytes wasted beside no block in use."""
    peak, waste = (np.zeros(len(study.blocks), dtype=np.int64) for _ in range(2))
    lives, places = moment.live
    there = moment.blocks[places]
    peak[lives] = there["requested"]
    waste[lives] = there["size"].astype(np.int64) - there["requested"].astype(np.int64) + moment.pinned[places]
    waiting = study.blocks.waiting_at(at)
    waste[waiting] += study.blocks.size[waiting]
    return peak, waste, moment.reserved - moment.requested - int(waste.sum())


def _paths(study: Study, lives: NDArray[np.int64]) -> Iterator[tuple[list[tuple[str, bool]], NDArray[np.int64]]]:
    """Yield blocks by where they come from: labels from the outermost frame inwards, and the blocks."""
    origins, stacks = study.origins, study.recording.stacks
    own = study.blocks.stack[lives].astype(np.int64)
    caller = origins.caller[lives]
    noted = np.array(list(origins.forward), dtype=np.int64)
    is_noted = np.isin(lives, noted)
    known: dict[int, list[tuple[str, bool]]] = {}

    def path_of(number: int) -> list[tuple[str, bool]]:
        if number not in known:
            known[number] = _labels(stacks[number]) if number >= 0 else [(NO_STACK, False)]
        return known[number]

    keys, which = np.unique(np.stack([own, caller])[:, ~is_noted], axis=1, return_inverse=True)
    order = np.argsort(which.ravel(), kind="stable")
    groups = np.split(lives[~is_noted][order], np.cumsum(np.bincount(which.ravel(), minlength=keys.shape[1]))[:-1])
    for (stack, by), members in zip(keys.T.tolist(), groups, strict=True):
        yield ([*path_of(by), (BACKWARD, False)] if by >= 0 else path_of(stack)), members
    for life in lives[is_noted].tolist():
        yield [*_labels(origins.forward[life]), (BACKWARD, False)], np.array([life])


def _labels(stack: Stack) -> list[tuple[str, bool]]:
    """Return for each frame, outermost first, a label and whether it is the program's own."""
    frames: Sequence[Frame] = [frame for frame in python_frames(stack) if frame.name not in PLUMBING] or stack
    labels = [(_label(frame), not is_library(frame)) for frame in reversed(_shortened(frames))]
    if len(frames) > MOST_FRAMES:
        labels.insert(MOST_FRAMES // 2, (CUT, False))
    return labels or [(NO_STACK, False)]


def _shortened(frames: Sequence[Frame]) -> Sequence[Frame]:
    half = MOST_FRAMES // 2
    return frames if len(frames) <= MOST_FRAMES else [*frames[:half], *frames[-half:]]


def _label(frame: Frame) -> str:
    place = "" if is_compiled(frame) else f" {frame.filename}:{frame.line}"
    return printable(f"{frame.name}{place}")


class _Tree:
    """The nodes while they are being added."""

    def __init__(self) -> None:
        self._label = ["all"]
        self._is_own = [False]
        self._parent = [-1]
        self._bytes: list[list[int]] = [[0, 0, 0]]
        self._child: dict[tuple[int, str], int] = {}

    def add(self, path: Sequence[tuple[str, bool]], figures: Sequence[int]) -> None:
        node = 0
        self._count(0, figures)
        for label, is_own in path:
            child = self._child.get((node, label))
            if child is None:
                child = self._child[node, label] = len(self._label)
                self._label.append(label)
                self._is_own.append(is_own)
                self._parent.append(node)
                self._bytes.append([0, 0, 0])
            node = child
            self._count(node, figures)

    def _count(self, node: int, figures: Sequence[int]) -> None:
        for place, figure in enumerate(figures):
            self._bytes[node][place] += figure

    def flame(self) -> Flame:
        """Return the tree; if it is too large, without the smallest nodes, whose parents keep their bytes."""
        figures = np.array(self._bytes, dtype=np.int64)
        share = (figures / np.maximum(figures[0], 1)).max(axis=1)
        least = 0.0 if len(share) <= MOST_NODES else float(np.partition(share, -MOST_NODES)[-MOST_NODES])
        number: dict[int, int] = {}
        kept: list[int] = []
        for node in range(len(share)):
            # A parent has at least the share of its child, and precedes it.
            if node == 0 or (share[node] >= least and self._parent[node] in number and len(kept) < MOST_NODES):
                number[node] = len(kept)
                kept.append(node)
        return Flame(
            label=[self._label[node] for node in kept],
            is_own=[self._is_own[node] for node in kept],
            parent=[number.get(self._parent[node], -1) for node in kept],
            totals={metric: figures[kept, place].tolist() for place, metric in enumerate(METRICS)},
        )
