"""Which line of code holds memory: stacks, and the one line of each that a user would look at."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment._formats.torch_snapshot import Stack
from allotment.lab.replay.moment import Moment
from allotment.lab.replay.run import Recording

__all__ = ["UNKNOWN", "Holder", "holders", "line_of", "lines_of", "lines_of_live"]

UNKNOWN = "unknown: no stack was recorded"
_LIBRARIES = ("/site-packages/", "/dist-packages/", "/torch/", "\\site-packages\\", "<frozen ", "<string>")
_COMPILED = ("", "??")


@dataclass(frozen=True, slots=True)
class Holder:
    """A line of code and what it holds."""

    where: str
    bytes: int
    blocks: int


def line_of(stack: Stack) -> str:
    """The innermost line that is the user's own; of a stack of libraries alone, its innermost line of Python."""
    in_python = [frame for frame in stack if frame.filename not in _COMPILED]
    own = [frame for frame in in_python if not any(part in frame.filename for part in _LIBRARIES)]
    chosen: Iterable[Frame] = own or in_python or stack
    for frame in chosen:
        return f"{frame.filename}:{frame.line} {frame.name}".rstrip()
    return UNKNOWN


def lines_of(stacks: Sequence[Stack], numbers: Sequence[int]) -> list[str]:
    """The line of each stack that is given by its number, -1 for none."""
    lines = {number: line_of(stacks[number]) if number >= 0 else UNKNOWN for number in set(numbers)}
    return [lines[number] for number in numbers]


def lines_of_live(recording: Recording, moment: Moment) -> tuple[list[str], NDArray[np.void]]:
    """For each block in use the line that allocated it, and the blocks."""
    lives, blocks = moment.live
    return lines_of(recording.stacks, recording.stack_of_lives(lives, blocks["address"]).tolist()), blocks


def holders(lines: Sequence[str], sizes: Sequence[int]) -> list[Holder]:
    """Who holds what is in use, the largest first: a line and a size for each block."""
    held: dict[str, list[int]] = {}
    for line, size in zip(lines, sizes, strict=True):
        total = held.setdefault(line, [0, 0])
        total[0] += size
        total[1] += 1
    found = [Holder(line, size, count) for line, (size, count) in held.items()]
    return sorted(found, key=lambda holder: (-holder.bytes, holder.where))
