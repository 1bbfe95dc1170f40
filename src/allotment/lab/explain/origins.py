"""The line of code of each block, even if the stack does not show it.

A backward pass runs on a thread of PyTorch, whose stacks have no Python frames. If PyTorch noted the forward line
(`forward_frames`, under `torch.autograd.detect_anomaly(check_nan=False)`), the block is charged to that line. Otherwise
it is charged to the line that called `backward()`: that call allocates a first gradient under its own stack, right
before the others.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment._formats.torch_snapshot import Stack
from allotment.lab.explain.blocks import Blocks
from allotment.lab.explain.holders import UNKNOWN, has_python, line_of
from allotment.lab.explain.stack_marks import Mark, marks_of
from allotment.lab.replay.run import Recording

__all__ = ["Origins", "origins_of"]

IN_BACKWARD = ", in the backward pass"
_FORWARD_FRAME = re.compile(r'\s*File "(?P<file>[^"]*)", line (?P<line>\d+), in (?P<name>.*)')


@dataclass(frozen=True, slots=True, eq=False)
class Origins:
    """The line of each block."""

    lines: list[str]
    of_life: NDArray[np.int32]
    """By life: the number of its line."""
    in_backward: NDArray[np.bool_]
    """By life: whether it was allocated in a backward pass."""
    caller: NDArray[np.int64]
    """By life: the stack that called the backward pass which allocated it; -1 if unknown."""
    forward: dict[int, Stack]
    """By life: the forward frames that PyTorch noted, innermost first."""
    marks: NDArray[np.uint16]
    """By life: the marks of its stack, see `stack_marks`."""


def origins_of(recording: Recording, blocks: Blocks) -> Origins:
    """Return the line of each block of a recording."""
    stacks = recording.stacks
    marks_of_stacks = np.append(marks_of(stacks), np.uint16(0))
    marks = marks_of_stacks[blocks.stack]
    has_frames = np.append([has_python(stack) for stack in stacks], False).astype(bool)[blocks.stack]
    numbers: dict[str, int] = {UNKNOWN: 0}
    of_stack = [numbers.setdefault(line_of(stack), len(numbers)) for stack in stacks]
    of_life = np.array([*of_stack, 0], dtype=np.int32)[blocks.stack]
    in_backward = (marks & Mark.BACKWARD) > 0
    callers = np.full(len(blocks), -1, dtype=np.int64)
    if np.any(has_frames):
        callers = _callers_of_backward(blocks, marks, has_frames)
        for caller in np.unique(callers[callers >= 0]).tolist():
            number = numbers.setdefault(_shown(stacks[caller]), len(numbers))
            of_life[callers == caller] = number
        in_backward |= callers >= 0
    forward = _forward_stacks(recording)
    for life, stack in forward.items():
        of_life[life] = numbers.setdefault(_shown(stack), len(numbers))
        in_backward[life] = True
    return Origins(list(numbers), of_life, in_backward, callers, forward, marks)


def _shown(stack: Stack) -> str:
    return line_of(stack) + IN_BACKWARD


def _callers_of_backward(blocks: Blocks, marks: NDArray[np.uint16], has_frames: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Return by life the stack that called the backward pass which allocated it; -1 for other blocks.

    Blocks without Python frames belong to a backward pass if a call of `backward()` allocated the last block that the
    program allocated before them, or if their compiled frames say so.
    """
    order = np.argsort(blocks.begin, kind="stable")
    order = order[blocks.begin[order] >= 1]
    says_so = (marks[order] & Mark.BACKWARD) > 0
    of_program = has_frames[order] & ~says_so
    calls_backward = of_program & ((marks[order] & Mark.CALLS_BACKWARD) > 0)
    place = np.arange(len(order))
    last_of_program = np.maximum.accumulate(np.where(of_program, place, -1))
    last_call = np.maximum.accumulate(np.where(calls_backward, place, -1))
    follows = (last_of_program >= 0) & (last_of_program == last_call)
    is_backward = ~has_frames[order] & (last_call >= 0) & (follows | says_so)
    callers = np.full(len(blocks), -1, dtype=np.int64)
    callers[order[is_backward]] = blocks.stack[order[last_call[is_backward]]]
    return callers


def _forward_stacks(recording: Recording) -> dict[int, Stack]:
    """Return by life the forward frames that PyTorch noted when a backward pass allocated it."""
    noted = recording.trace.extra.get("forward_frames", {})
    if not noted:
        return {}
    allocated_at = recording.allocated_at
    life_at = {int(entry): life for life, entry in enumerate(allocated_at.tolist()) if entry in noted}
    parsed: dict[str, Stack] = {}
    found: dict[int, Stack] = {}
    for entry, life in life_at.items():
        texts = noted[entry]
        if isinstance(texts, list):
            key = "\n".join(text for text in texts if isinstance(text, str))
            stack = parsed.setdefault(key, forward_stack([text for text in texts if isinstance(text, str)]))
            if stack:
                found[life] = stack
    return found


def forward_stack(texts: Sequence[str]) -> Stack:
    """Return the frames of forward lines, innermost first; PyTorch notes them outermost first."""
    matches = [_FORWARD_FRAME.match(text) for text in texts]
    return tuple(Frame(match["name"], match["file"], int(match["line"][:9])) for match in reversed(matches) if match)
