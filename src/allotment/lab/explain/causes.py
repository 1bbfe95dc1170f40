"""Why a program needs its memory: findings about the program itself, each with its cost.

A finding examines the moment at which most is in use, or the request that failed, and computes what the peak would be
without the found memory.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from allotment._texts import exact_size
from allotment.lab.explain.failure import Failure
from allotment.lab.explain.holders import UNKNOWN
from allotment.lab.explain.kinds import KindOfMemory
from allotment.lab.explain.models import models_there_twice
from allotment.lab.explain.steps import Steps
from allotment.lab.explain.study import Study
from allotment.lab.explain.waste import Waste
from allotment.lab.replay.moment import Moment

__all__ = ["Cause", "Scene", "causes_of"]

SHORT = 0.1
"""The longest duration of a temporary, as a fraction of a step."""
SHORT_CALLS = 64
"""The same in calls, if there are no steps."""
LARGE = 0.1
"""The fraction of the peak from which on pieces and pools are a finding."""
OUTLIER = 1.3
"""The factor by which a step must use more than any other step to stand out."""
PASSING = (KindOfMemory.ACTIVATIONS, KindOfMemory.TEMPORARIES, KindOfMemory.UNKNOWN)
"""Kinds of memory that a step makes for itself."""
MOST_LINES = 3
LEAST_SIZES = 8
"""Number of different sizes at one line that count as varying sizes."""
WORTH_COMPARING = 1 << 20
LOST = 0.05
"""The fraction of a device that is lost to rounding and pieces, if nothing better is known."""
USUAL_WORKSPACES = 2
"""Any training has one for its own thread and one for the thread of the backward pass."""


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding."""

    text: str
    gain_bytes: int
    rank: int = 1
    """Findings with a lower rank come first, whatever they gain."""


@dataclass(frozen=True, slots=True, eq=False)
class Scene:
    """The facts that findings examine."""

    study: Study
    moment: int
    """The moment at which most is in use; for a run that failed, the moment of the failure."""
    peak: Moment
    """Memory at the peak of reserved memory."""
    peak_moment: int
    peak_reserved_bytes: int
    waste: Waste
    failure: Failure | None

    def is_large(self, size: int) -> bool:
        """Whether these bytes are worth a finding: a large part of reserved memory."""
        return size > 0 and size >= LARGE * self.peak_reserved_bytes


def causes_of(scene: Scene) -> Iterator[Cause]:
    """Yield all findings, in no order."""
    yield from _large_batch(scene)
    yield from _kept_from_previous_step(scene)
    yield from _temporaries(scene)
    yield from _pieces(scene)
    yield from _other_streams(scene)
    yield from _waiting(scene)
    yield from _pools(scene)
    yield from _workspaces(scene)
    yield from models_there_twice_as_causes(scene)


def _peak_without(study: Study, lives: NDArray[np.bool_]) -> int:
    """Return the peak of memory in use if these blocks had not existed."""
    return int(study.blocks.in_use(~lives).max(initial=0))


def _lines(study: Study, lives: NDArray[np.int64], lead: str) -> str:
    """Return the lines of some blocks after a word, most bytes first; nothing if no line is known."""
    counted: Counter[str] = Counter()
    for line, size in zip(study.lines_of(lives), study.blocks.size[lives].tolist(), strict=True):
        counted[line] += size
    counted.pop(UNKNOWN, None)
    named = [line for line, _ in counted.most_common(MOST_LINES)]
    more = len(counted) - len(named)
    if more > 0:
        named.append(f"{more} other line{'s' if more > 1 else ''}")
    if len(named) > 1:
        named = [", ".join(named[:-1]), named[-1]]
    return lead + " and ".join(named) if named else ""


def _largest_line(study: Study, lives: NDArray[np.int64]) -> tuple[int, NDArray[np.int64]] | None:
    """Return the number of the line with most bytes among some blocks, and its blocks among them."""
    if len(lives) == 0:
        return None
    lines = study.origins.of_life[lives]
    held = np.bincount(lines, study.blocks.size[lives])
    best = int(np.argmax(held))
    return best, lives[lines == best]


# --- one step ------------------------------------------------------------------------------------------------------


def _large_batch(scene: Scene) -> Iterator[Cause]:
    """Find a step that uses far more than any other, because its tensors are larger."""
    study, steps = scene.study, scene.study.steps
    if steps is None or len(steps.edges) < 4:
        return
    in_use, edges = study.in_use, steps.edges
    bounds = [*edges.tolist(), len(in_use)]
    peaks, passing = (
        np.array([curve[first:end].max(initial=0) for first, end in pairwise(bounds)])
        for curve in (in_use, steps.passing)
    )
    step = int(np.searchsorted(edges, scene.moment, "left")) - 1
    if step < 0 or passing[step] < OUTLIER * np.delete(passing, step).max(initial=1):
        return
    base = int(np.median(in_use[edges[1:]]))
    others = np.delete(peaks, step)
    ratio = _size_ratio(study, steps, step)
    lives = study.blocks.at(scene.moment)
    lives = lives[study.blocks.begin[lives] >= edges[step]]
    of_batch = np.isin(study.kinds.of_life[lives], PASSING)
    sizes = study.blocks.size[lives]
    if ratio is None or ratio < OUTLIER or 2 * sizes[of_batch].sum() < sizes.sum():
        return
    usual = int(np.median(others))
    text = (
        f"The batch of step {step + 1:,} is {ratio:.1f} times as large as those of other steps, by the sizes"
        f" requested{_lines(study, lives, ' at ')}: {exact_size(int(peaks[step]))} are in use where other steps use"
        f" {exact_size(usual)}."
    )
    fits = _batch_that_fits(scene, ratio, base, usual)
    if scene.failure is not None and fits is not None:
        text += f" Batches up to about {fits:.1f} times the usual size fit on {exact_size(scene.failure.capacity)}."
    yield Cause(text, int(peaks[step]) - usual, rank=0)


def _batch_that_fits(scene: Scene, ratio: float, base: int, usual: int) -> float | None:
    """Return how many times the usual batch would have fitted, if memory grows in proportion to it; None if unknown.

    The usual step shows what a batch needs from its beginning to its end; the failed step shows what the large batch
    needed up to the failure. The smaller result counts, and the failed batch does not fit.
    """
    if scene.failure is None or usual <= base:
        return None
    room = scene.failure.capacity - base
    needed = int(scene.study.in_use[scene.moment]) + scene.failure.size - base
    fits = min(room / (usual - base), ratio * room / max(needed, 1))
    tenths = int(10 * (1 - LOST) * fits) / 10
    return tenths if 1 <= tenths < ratio else None


def _size_ratio(study: Study, steps: Steps, step: int) -> float | None:
    """Return how many times as large the blocks of a step are as those of the same stacks in other steps."""
    blocks = study.blocks
    of_step = np.searchsorted(steps.edges, blocks.begin, "left") - 1
    large = np.flatnonzero((blocks.begin >= 1) & (blocks.size >= WORTH_COMPARING) & (blocks.stack >= 0))
    here = large[of_step[large] == step]
    there = large[of_step[large] != step]
    ratios, weights = [], []
    count = int(blocks.stack.max(initial=-1)) + 1
    mean_here = _means(blocks.stack[here], blocks.size[here], count)
    mean_there = _means(blocks.stack[there], blocks.size[there], count)
    for stack in np.flatnonzero((mean_here > 0) & (mean_there > 0)).tolist():
        ratios.append(mean_here[stack] / mean_there[stack])
        weights.append(mean_here[stack])
    if not ratios:
        return None
    order = np.argsort(ratios)
    reached = np.cumsum(np.array(weights)[order])
    return float(np.array(ratios)[order][np.searchsorted(reached, reached[-1] / 2)])


def _means(keys: NDArray[np.int32], values: NDArray[np.int64], count: int) -> NDArray[np.float64]:
    many = np.bincount(keys, minlength=count)
    return np.asarray(np.bincount(keys, values, count) / np.maximum(many, 1))


def _kept_from_previous_step(scene: Scene) -> Iterator[Cause]:
    """Find blocks of a step that still exist while the next step makes the same again.

    The position in the loop at which a step begins does not matter: a block is old if its stack has since made as many
    requests as it makes in a step.
    """
    study, steps = scene.study, scene.study.steps
    if steps is None:
        return
    blocks, most = study.blocks, int(study.in_use.max(initial=0))
    again = _same_of_next_step(study, steps)
    two_steps = 2 * np.median(np.diff(steps.edges))
    # Memory that lives longer than that is a leak, or meant to stay.
    passing = np.isin(study.kinds.of_life, PASSING) & (blocks.freed - blocks.begin <= two_steps)
    lives = blocks.at(scene.moment)
    found = _largest_line(study, lives[passing[lives] & (again[lives] <= scene.moment)])
    if found is None:
        return
    line, kept = found
    of_line = study.origins.of_life == line
    is_leak = np.median((blocks.freed - blocks.begin)[of_line & (again <= blocks.last)]) > two_steps
    if is_leak or study.origins.lines[line] == UNKNOWN:
        return
    # The peak if the line's blocks were freed when the next step makes them again.
    early = np.where(of_line & passing, np.minimum(blocks.freed, again), blocks.freed)
    change = np.bincount(blocks.begin, blocks.size, blocks.last + 2) - np.bincount(early, blocks.size, blocks.last + 2)
    rest = round(float(np.cumsum(change)[: blocks.last + 1].max(initial=0)))
    yield Cause(
        f"At the peak {exact_size(int(blocks.size[kept].sum()))} of the previous step are still in use, beside the"
        f" same of the current step: allocated at {study.origins.lines[line]}, and kept by a variable, a closure or an"
        " object that is replaced too late. Delete it before the next step begins: the peak in use would be"
        f" {exact_size(rest)}.",
        most - rest,
    )


def _same_of_next_step(study: Study, steps: Steps) -> NDArray[np.int64]:
    """Return by block the moment at which the next step allocates the same; after the last moment if none does."""
    blocks = study.blocks
    found = np.full(len(blocks), blocks.last + 1, dtype=np.int64)
    known = np.flatnonzero((blocks.stack >= 0) & (blocks.begin >= 1) & (blocks.begin <= blocks.last))
    if len(known) == 0 or len(steps.edges) < 2:
        return found
    order = known[np.lexsort((blocks.begin[known], blocks.stack[known]))]
    stack, begin = blocks.stack[order], blocks.begin[order]
    inside = (begin > steps.edges[0]) & (begin <= steps.edges[-1])
    each = np.rint(np.bincount(stack[inside], minlength=int(stack.max()) + 1) / (len(steps.edges) - 1))
    each_step = each[stack].astype(np.int64)
    place = np.arange(len(order)) + each_step
    there = np.flatnonzero((each_step > 0) & (place < len(order)))
    there = there[stack[place[there]] == stack[there]]
    found[order[there]] = begin[place[there]]
    return found


def _temporaries(scene: Scene) -> Iterator[Cause]:
    """Find memory that is needed for a short time and makes the peak."""
    study, steps = scene.study, scene.study.steps
    blocks = study.blocks
    moment = int(np.argmax(study.in_use))
    lives = blocks.at(moment)
    is_temporary = study.kinds.of_life == KindOfMemory.TEMPORARIES
    length = blocks.freed - blocks.begin
    most = max(SHORT * float(np.median(np.diff(steps.edges))), SHORT_CALLS) if steps is not None else SHORT_CALLS
    found = _largest_line(study, lives[is_temporary[lives] & (length[lives] <= most)])
    if found is None:
        return
    line, there = found
    of_line = is_temporary & (study.origins.of_life == line) & (length <= most)
    rest = _peak_without(study, of_line)
    gain = int(study.in_use.max(initial=0)) - rest
    where = study.origins.lines[line]
    yield Cause(
        f"{'The program' if where == UNKNOWN else where} needs {exact_size(int(blocks.size[there].sum()))} for a short"
        f" time, just at the peak. Without it the peak in use would be {exact_size(rest)}: compute it in parts,"
        " in place or in a smaller type.",
        gain,
    )


# --- reserved and not in use -----------------------------------------------------------------------------------------


def _pieces(scene: Scene) -> Iterator[Cause]:
    """Find free memory that serves nothing, and the line whose sizes vary most."""
    pieces, whole = scene.waste.pieces, scene.waste.unreleased
    if not scene.is_large(pieces + whole):
        return
    parts = [
        (size, where) for size, where in ((pieces, "pieces beside blocks in use"), (whole, "whole segments")) if size
    ]
    places = ", in " + parts[0][1]
    if len(parts) > 1:
        places = ": " + " and ".join(f"{exact_size(size)} in {where}" for size, where in parts)
    text = f"{exact_size(pieces + whole)} of reserved memory are free and serve nothing{places}"
    yield Cause(text + (_changing_sizes(scene) or f"{_pinned_by(scene)}."), pieces + whole)


def _changing_sizes(scene: Scene) -> str:
    """Describe the line that requests most memory in many different sizes."""
    study = scene.study
    blocks, line_of = study.blocks, study.origins.of_life
    is_workspace = study.kinds.of_life == KindOfMemory.WORKSPACES
    large = np.flatnonzero((blocks.size >= WORTH_COMPARING) & (blocks.begin <= scene.peak_moment) & ~is_workspace)
    pairs = np.unique(np.stack([line_of[large].astype(np.int64), blocks.size[large]]), axis=1)
    sizes = np.bincount(pairs[0], minlength=1) if pairs.size else np.zeros(1, dtype=np.int64)
    asked = np.bincount(line_of[large], blocks.size[large], len(sizes))
    varying = np.where(sizes >= LEAST_SIZES, asked, 0)
    if varying.max(initial=0) <= 0:
        return ""
    line = int(np.argmax(varying))
    of_line = pairs[1][pairs[0] == line]
    asker = "the program" if study.origins.lines[line] == UNKNOWN else study.origins.lines[line]
    return (
        f", because sizes vary: {asker} requested {len(of_line):,} different sizes, from"
        f" {exact_size(int(of_line.min()))} to {exact_size(int(of_line.max()))}. Round lengths up to a few sizes, begin"
        " with the largest, or use other settings."
    )


def _pinned_by(scene: Scene) -> str:
    """Describe the line whose blocks keep most of the pieces."""
    study, moment = scene.study, scene.peak
    lives, places = moment.live
    kept = moment.pinned[places]
    if len(lives) == 0 or kept.max(initial=0) <= 0:
        return ""
    held = np.bincount(study.origins.of_life[lives], kept)
    line = int(np.argmax(held))
    if study.origins.lines[line] == UNKNOWN:
        return ""
    return f"; {exact_size(int(held[line]))} of them lie beside blocks from {study.origins.lines[line]}"


def _other_streams(scene: Scene) -> Iterator[Cause]:
    """Find free memory that only other streams may use."""
    size = scene.waste.other_streams
    if not scene.is_large(size):
        return
    yield Cause(
        f"{exact_size(size)} of reserved memory are free for streams other than the one that requested the peak:"
        " PyTorch gives a block only to the stream that it was first allocated for. Allocate on one stream, or use"
        " placement:dense, whose free memory serves all streams.",
        size,
    )


def _waiting(scene: Scene) -> Iterator[Cause]:
    """Find freed memory that waits for other streams."""
    study = scene.study
    blocks = study.blocks
    # Frees in private pools wait for the end of a capture, not for a stream.
    late = np.flatnonzero((blocks.done > blocks.freed) & (blocks.pool == 0))
    if len(late) == 0:
        return
    size, span = blocks.size[late], blocks.last + 2
    change = np.bincount(np.minimum(blocks.freed[late], span - 1), size, span)
    change -= np.bincount(np.minimum(blocks.done[late], span - 1), size, span)
    curve = np.rint(np.cumsum(change)[: blocks.last + 1]).astype(np.int64)
    moment = int(np.argmax(curve))
    most = int(curve[moment])
    if most == 0:
        return
    waiting = blocks.waiting_at(moment)
    waiting = waiting[blocks.pool[waiting] == 0]
    streams = np.unique(blocks.stream[waiting]).tolist()
    yield Cause(
        f"Up to {exact_size(most)} were freed and could not be reused, because another stream still used"
        f" them (record_stream): allocated{_lines(study, waiting, ' at ')} on stream"
        f" {' and '.join(str(stream) for stream in streams[:MOST_LINES])}. Make that stream wait for the other one"
        " earlier, or prefetch fewer batches.",
        most,
    )


def _pools(scene: Scene) -> Iterator[Cause]:
    """Find private pools, of graphs, that each hold their own memory."""
    blocks = scene.peak.blocks
    private = (blocks["pool_first"] > 0) | (blocks["pool_second"] > 0)
    held: Counter[tuple[int, int]] = Counter()
    for first, second, size in blocks[private][["pool_first", "pool_second", "size"]].tolist():
        held[first, second] += size
    total = sum(held.values())
    if len(held) < 2 or not scene.is_large(total):
        return
    in_use = int(blocks["requested"][private].sum())
    yield Cause(
        f"{len(held)} private pools, as graph captures make them, hold {exact_size(total)}, of which"
        f" {exact_size(in_use)} are in use. Graphs that do not run at the same time can share one pool"
        " (torch.cuda.graph_pool_handle()), the largest captured first: they would need little more than"
        f" {exact_size(max(held.values()))}.",
        total - max(held.values()),
    )


def _workspaces(scene: Scene) -> Iterator[Cause]:
    """Find workspaces of libraries, one for each thread and stream."""
    study = scene.study
    lives = study.blocks.at(scene.moment)
    lives = lives[study.kinds.of_life[lives] == KindOfMemory.WORKSPACES]
    if len(lives) <= USUAL_WORKSPACES:
        return
    total = int(study.blocks.size[lives].sum())
    there, places = scene.peak.live
    beside = int(scene.peak.pinned[places[np.isin(there, lives)]].sum())
    pinning = f" (and {exact_size(beside)} of free memory beside them)" if beside > total // 10 else ""
    yield Cause(
        f"{len(lives)} workspaces of libraries such as cuBLAS hold {exact_size(total)}{pinning} and are never freed:"
        f" one for each stream and thread that multiplied matrices{_lines(study, lives, ', at ')}. Use fewer streams"
        " and threads, CUBLAS_WORKSPACE_CONFIG=:16:8 for smaller ones, or torch._C._cuda_clearCublasWorkspaces().",
        total + beside - int(np.sort(study.blocks.size[lives])[-USUAL_WORKSPACES:].sum()),
    )


def models_there_twice_as_causes(scene: Scene) -> Iterator[Cause]:
    """Find parameters that exist twice, or of two models."""
    for each in models_there_twice(scene.study, scene.moment):
        if each.are_equal:
            text = (
                f"The same model exists twice: {exact_size(each.first_bytes)} from {each.first} and"
                f" {exact_size(each.second_bytes)} in blocks of the same sizes from {each.second}. If one is a copy"
                " that is used rarely, keep it in host memory."
            )
        else:
            text = (
                f"Two models exist at once: {exact_size(each.first_bytes)} from {each.first} and"
                f" {exact_size(each.second_bytes)} from {each.second}. If they are not used at the same time, keep one"
                " in host memory."
            )
        yield Cause(text, min(each.first_bytes, each.second_bytes))
