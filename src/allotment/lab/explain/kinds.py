"""The kind of memory of each block (parameters, gradients, activations and so on), and how sure it is.

Stacks show which part of a program made a request: loading a module, a forward pass, a backward pass, an optimizer. The
lifetime of a block shows the rest. Memory of a forward pass that still exists when the backward pass begins is an
activation, otherwise a temporary. Memory of a backward pass that exists when the optimizer runs is a gradient. If
neither shows enough, the kind is unknown.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment._formats.torch_snapshot import Stack
from allotment.lab.explain.blocks import Blocks
from allotment.lab.explain.labels import Labels, scope_starts
from allotment.lab.explain.stack_marks import Mark, marks_of
from allotment.lab.explain.steps import OPTIMIZER_STEP, Steps
from allotment.lab.explain.study import Study
from allotment.lab.replay.run import Recording

__all__ = [
    "KINDS",
    "NO_GUESS",
    "KindBytes",
    "KindOfMemory",
    "Kinds",
    "classify",
    "kind_labels",
    "kinds_at",
    "kinds_at_end",
]

KINDS = (
    "parameters",
    "gradients",
    "optimizer",
    "activations",
    "temporaries",
    "workspaces",
    "graphs",
    "caches",
    "unknown",
)
CUBLAS_WORKSPACES = (8_519_680, 33_554_432)
"""Bytes of the workspaces that PyTorch gives cuBLAS: before Hopper, and from Hopper on."""
NO_GUESS = 0.6
"""Certainty from which on a kind is shown without a note about how sure it is."""
FEW_STACKS = 0.1
"""A history in which a smaller fraction of requests has a stack counts as one without stacks."""


class KindOfMemory(IntEnum):
    """Indexes of `KINDS`."""

    PARAMETERS = 0
    GRADIENTS = 1
    OPTIMIZER = 2
    ACTIVATIONS = 3
    TEMPORARIES = 4
    WORKSPACES = 5
    GRAPHS = 6
    CACHES = 7
    UNKNOWN = 8


@dataclass(frozen=True, slots=True)
class KindBytes:
    """The bytes of one kind at a moment."""

    kind: str
    bytes: int
    sure: float
    """Certainty from 0 to 1, the mean over the bytes."""


@dataclass(frozen=True, slots=True, eq=False)
class Kinds:
    """The kind of each block."""

    of_life: NDArray[np.uint8]
    sure: NDArray[np.float32]
    """Certainty by life, from 0 to 1."""
    names: tuple[str, ...] = KINDS

    def sums(self, lives: NDArray[np.int64], sizes: NDArray[np.integer]) -> list[KindBytes]:
        """Return the bytes of some blocks by kind, largest first; kinds without bytes are omitted."""
        kind = self.of_life[lives]
        held = np.bincount(kind, sizes, len(KINDS))
        weight = np.bincount(kind, sizes * self.sure[lives], len(KINDS))
        found = [
            KindBytes(name, int(held[number]), round(float(weight[number] / held[number]), 2))
            for number, name in enumerate(KINDS)
            if held[number]
        ]
        return sorted(found, key=lambda each: -each.bytes)


def kinds_at(study: Study, moment: int) -> list[KindBytes]:
    """Return what is in use at a moment, by kind."""
    lives = study.blocks.at(moment)
    return study.kinds.sums(lives, study.blocks.size[lives])


def kinds_at_end(
    stacks: Sequence[Stack], of_block: NDArray[np.int32], in_pool: NDArray[np.bool_], sizes: NDArray[np.integer]
) -> list[KindBytes]:
    """Return the blocks of a snapshot without a history by kind: only what stacks and pools show."""
    marks = np.append(marks_of(stacks), np.uint16(0))[of_block]
    verdicts = _Verdicts(len(of_block))
    verdicts.assign(in_pool, KindOfMemory.GRAPHS, 0.8)
    for mark, kind, sure in (
        (Mark.WORKSPACE, KindOfMemory.WORKSPACES, 1.0),
        (Mark.OPTIMIZER, KindOfMemory.OPTIMIZER, 0.7),
        (Mark.CACHE, KindOfMemory.CACHES, 0.6),
        (Mark.LOADING, KindOfMemory.PARAMETERS, 0.8),
    ):
        verdicts.assign(_has(marks, mark), kind, sure)
    return Kinds(verdicts.kind, verdicts.sure).sums(np.arange(len(of_block)), sizes)


def kind_labels(kinds: Kinds) -> Labels:
    """Return the kinds as labels, by which a timeline can group; guesses count as unknown."""
    known = np.where(kinds.sure >= NO_GUESS, kinds.of_life, KindOfMemory.UNKNOWN)
    return Labels("kind", list(KINDS), known.astype(np.int32))


class _Verdicts:
    """Kinds while they are being decided: the first rule that applies to a block decides."""

    def __init__(self, count: int) -> None:
        self.kind = np.full(count, KindOfMemory.UNKNOWN, dtype=np.uint8)
        self.sure = np.zeros(count, dtype=np.float32)
        self._open = np.ones(count, dtype=bool)

    def assign(self, which: NDArray[np.bool_], kind: KindOfMemory, sure: float) -> None:
        """Assign a kind to these blocks, except those that already have one."""
        which = which & self._open
        self.kind[which], self.sure[which] = kind, sure
        self._open &= ~which


def classify(study: Study) -> Kinds:
    """Return the kinds of all blocks."""
    blocks, steps = study.blocks, study.steps
    verdicts = _Verdicts(len(blocks))
    _by_label(study.labels, verdicts)
    marks = study.origins.marks
    in_pool = blocks.pool > 0
    verdicts.assign(in_pool & _has(marks, Mark.CAPTURE), KindOfMemory.GRAPHS, 1.0)
    verdicts.assign(in_pool, KindOfMemory.GRAPHS, 0.8)
    has_stacks = np.count_nonzero(blocks.stack >= 0) > FEW_STACKS * len(blocks)
    if has_stacks:
        _by_stack(study, marks, verdicts)
    elif steps is not None:
        _by_lifetime(blocks, steps, study.in_use, verdicts)
    return Kinds(verdicts.kind, verdicts.sure)


def _has(marks: NDArray[np.uint16], mark: Mark) -> NDArray[np.bool_]:
    return np.asarray((marks & mark) > 0)


# --- from the program's own texts ----------------------------------------------------------------------------------

_WORDS: tuple[tuple[str, KindOfMemory], ...] = (
    (r"grad", KindOfMemory.GRADIENTS),
    (r"optim|adam|momentum", KindOfMemory.OPTIMIZER),
    (r"kv|cache", KindOfMemory.CACHES),
    (r"activation", KindOfMemory.ACTIVATIONS),
    (r"workspace", KindOfMemory.WORKSPACES),
    (r"weight|param", KindOfMemory.PARAMETERS),
)


def _by_label(labels: list[Labels], verdicts: _Verdicts) -> None:
    """Apply the program's texts about its own memory, if they name a kind."""
    for each in labels:
        if each.source not in ("annotation", "metadata"):
            continue
        meant = {}
        for number, name in enumerate(each.names):
            found = [kind for pattern, kind in _WORDS if re.search(pattern, name, re.IGNORECASE)]
            if len(found) == 1:
                meant[number] = found[0]
        for kind in set(meant.values()):
            numbers = [number for number, value in meant.items() if value == kind]
            verdicts.assign(np.isin(each.of_life, numbers), kind, 1.0)


# --- from stacks ---------------------------------------------------------------------------------------------------


def _by_stack(study: Study, marks: NDArray[np.uint16], verdicts: _Verdicts) -> None:
    blocks, steps, origins = study.blocks, study.steps, study.origins
    stays = blocks.freed > blocks.last
    spans = _edges_spanned(blocks, steps)
    outlives_step = (spans >= 1) | stays if steps is None else spans >= 1
    verdicts.assign(_has(marks, Mark.WORKSPACE), KindOfMemory.WORKSPACES, 1.0)
    optimizing = (_has(marks, Mark.OPTIMIZER) & ~_has(marks, Mark.COPY)) | _in_optimizer_scope(study)
    verdicts.assign(optimizing & (outlives_step | stays), KindOfMemory.OPTIMIZER, 0.95)
    verdicts.assign(optimizing, KindOfMemory.TEMPORARIES, 0.9)
    backward = origins.in_backward | _has(marks, Mark.CALLS_BACKWARD)
    passes = _moments(blocks, backward)
    caches = _has(marks, Mark.CACHE) & ((spans >= 1) | (len(passes) == 0))
    verdicts.assign(caches, KindOfMemory.CACHES, 0.8)
    first_pass = int(passes[0]) if len(passes) else blocks.last + 1
    lasting = stays | (blocks.freed - blocks.begin > blocks.last // 2)
    loading = _has(marks, Mark.LOADING) & ~backward
    verdicts.assign(loading & lasting, KindOfMemory.PARAMETERS, 0.95)
    verdicts.assign(loading, KindOfMemory.TEMPORARIES, 0.6)
    workspace = stays & np.isin(blocks.size, CUBLAS_WORKSPACES)
    asked = _has(marks, Mark.FORWARD) | backward | _on_several_streams(blocks, workspace)
    verdicts.assign(workspace & asked, KindOfMemory.WORKSPACES, 0.6)
    making = _has(marks, Mark.MAKING) & ~_has(marks, Mark.FORWARD) & ~backward
    verdicts.assign(making & lasting & (blocks.begin < first_pass), KindOfMemory.PARAMETERS, 0.6)
    verdicts.assign(_has(marks, Mark.GRADIENT_BUCKET), KindOfMemory.GRADIENTS, 0.8)
    verdicts.assign(backward & _has(marks, Mark.RECOMPUTE), KindOfMemory.ACTIVATIONS, 0.8)
    _of_backward(study, backward, optimizing, verdicts)
    has_stack = (blocks.stack >= 0) & (blocks.begin >= 1)
    if len(passes):
        at_pass = blocks.freed > _following(passes, blocks)
        loop = has_stack & (blocks.begin >= (steps.edges[0] if steps is not None else 0))
        asked = _has(marks, Mark.FORWARD)
        verdicts.assign(has_stack & asked & at_pass, KindOfMemory.ACTIVATIONS, 0.9)
        verdicts.assign(loop & at_pass & ~(stays & (blocks.begin < first_pass)), KindOfMemory.ACTIVATIONS, 0.7)
        verdicts.assign(has_stack & ~at_pass, KindOfMemory.TEMPORARIES, 0.85)
    else:
        verdicts.assign(has_stack & ~outlives_step & ~stays, KindOfMemory.TEMPORARIES, 0.7)


def _of_backward(study: Study, backward: NDArray[np.bool_], optimizing: NDArray[np.bool_], verdicts: _Verdicts) -> None:
    """Classify memory of backward passes: gradients exist when the optimizer runs, the rest does not."""
    blocks = study.blocks
    runs = np.union1d(_moments(blocks, optimizing), _noted_optimizer_steps(study.recording))
    if len(runs):
        verdicts.assign(backward & (blocks.freed > _following(runs, blocks)), KindOfMemory.GRADIENTS, 0.9)
    else:
        # Without an optimizer: memory that exists when the next forward pass begins, or at the end.
        marks = study.origins.marks
        passes = _moments(blocks, _has(marks, Mark.FORWARD) & ~backward)
        verdicts.assign(backward & (blocks.freed > _following(passes, blocks)), KindOfMemory.GRADIENTS, 0.6)
    verdicts.assign(backward, KindOfMemory.TEMPORARIES, 0.9)


def _on_several_streams(blocks: Blocks, which: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Return those of some blocks whose stack allocated one for each of several streams."""
    chosen = np.flatnonzero(which & (blocks.stack >= 0))
    pairs, counts = np.unique(
        np.stack([blocks.stack[chosen].astype(np.uint64), blocks.stream[chosen]]), axis=1, return_counts=True
    )
    stacks, streams = np.unique(pairs[0], return_counts=True)
    many = set(stacks[streams > 1].tolist()) - set(pairs[0][counts > 1].tolist())
    return which & np.isin(blocks.stack, [int(stack) for stack in many])


def _moments(blocks: Blocks, which: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return when these blocks were allocated, in order."""
    return np.unique(blocks.begin[which & (blocks.begin >= 1)])


def _following(moments: NDArray[np.int64], blocks: Blocks) -> NDArray[np.int64]:
    """Return by block the first of these moments after its allocation; the last moment of all if none follows."""
    return np.append(moments, blocks.last)[np.searchsorted(moments, blocks.begin, "right")]


def _edges_spanned(blocks: Blocks, steps: Steps | None) -> NDArray[np.int64]:
    if steps is None:
        return np.zeros(len(blocks), dtype=np.int64)
    return np.asarray(
        np.searchsorted(steps.edges, blocks.freed, "left") - np.searchsorted(steps.edges, blocks.begin, "left")
    )


def _in_optimizer_scope(study: Study) -> NDArray[np.bool_]:
    scopes = next((each for each in study.labels if each.source == "scope"), None)
    if scopes is None:
        return np.zeros(len(study.blocks), dtype=bool)
    named = [number for number, name in enumerate(scopes.names) if name.startswith(OPTIMIZER_STEP)]
    return np.isin(scopes.of_life, named)


def _noted_optimizer_steps(recording: Recording) -> NDArray[np.int64]:
    """Return the moments at which PyTorch noted the beginning of an optimizer's step."""
    times = np.array(scope_starts(recording, OPTIMIZER_STEP), dtype=np.int64)
    entries = np.searchsorted(recording.trace.time_us, times)
    return np.unique(np.searchsorted(recording.call_entries, entries)).astype(np.int64)


# --- without stacks ----------------------------------------------------------------------------------------------


def _by_lifetime(blocks: Blocks, steps: Steps, in_use: NDArray[np.int64], verdicts: _Verdicts) -> None:
    """Guess kinds from lifetimes and sizes.

    Blocks that exist from the beginning and stay are parameters. Blocks of the same sizes that come in the first step
    and stay are the optimizer's. In a step, blocks that exist at the peak are activations; blocks of a parameter's size
    that come later and live long are gradients.
    """
    edges = steps.edges
    first, second = int(edges[min(1, len(edges) - 1)]), int(edges[min(2, len(edges) - 1)])
    spans = _edges_spanned(blocks, steps)
    stays = spans >= max(len(edges) // 2, 2)
    peaks = np.array([start + int(np.argmax(in_use[start:end])) for start, end in pairwise(edges.tolist())])
    if len(peaks) == 0:
        return
    loaded = stays & (blocks.begin < peaks[0])
    sizes = np.unique(blocks.size[loaded])
    of_known_size = np.isin(blocks.size, sizes)
    verdicts.assign(loaded, KindOfMemory.PARAMETERS, 0.5)
    verdicts.assign(stays & of_known_size & (blocks.begin <= max(first, second)), KindOfMemory.OPTIMIZER, 0.4)
    verdicts.assign(stays, KindOfMemory.UNKNOWN, 0.0)
    peak = _following(peaks, blocks)
    is_there = (blocks.begin <= peak) & (blocks.freed > peak)
    step_length = np.median(np.diff(edges))
    long = (spans >= 1) | (blocks.freed - blocks.begin > step_length / 4)
    verdicts.assign(of_known_size & long & ~is_there & (blocks.begin >= 1), KindOfMemory.GRADIENTS, 0.4)
    verdicts.assign(is_there & (blocks.begin >= 1) & (spans <= 1), KindOfMemory.ACTIVATIONS, 0.5)
    verdicts.assign((blocks.begin >= 1) & (spans == 0), KindOfMemory.TEMPORARIES, 0.5)
