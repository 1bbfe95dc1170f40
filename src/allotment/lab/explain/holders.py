"""Which line of code holds memory: stacks, and the line of each that a user would look at."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from allotment._formats.pickle_columns import Frame
from allotment._formats.torch_snapshot import Stack
from allotment._texts import printable
from allotment.lab.replay.moment import Moment
from allotment.lab.replay.run import Recording

__all__ = [
    "UNKNOWN",
    "Category",
    "Holder",
    "StackHolder",
    "categories",
    "frame_shown",
    "has_python",
    "holders",
    "is_compiled",
    "is_library",
    "line_of",
    "lines_of",
    "lines_of_live",
    "own_frames",
    "python_frames",
    "stack_holders",
]

K = TypeVar("K")

UNKNOWN = "unknown: no stack was recorded"
_LIBRARIES = re.compile(r"[/\\](site|dist)-packages[/\\]|/torch/|/lib(64)?/python3\.\d+/|^<frozen |^<string>")
_COMPILED = re.compile(
    r"\.(c|cc|cpp|cxx|cu|cuh|h|hh|hpp|hxx|inl|ipp|tcc|rs|s|asm|dll|pyd|dylib|so(\.[\d.]+)?)$"
    r"|(^|/)python[\d.]*$|/include/c\+\+/|^$|^\?\?$",
    re.IGNORECASE,
)
"""Sources, headers and libraries: PyTorch names any of them for a compiled frame, by `TORCH_SYMBOLIZE_MODE`."""


@dataclass(frozen=True, slots=True)
class Holder:
    """A line of code and the memory that it holds."""

    where: str
    bytes: int
    blocks: int
    pinned_bytes: int = 0
    """Free memory next to its blocks that these keep from being released."""


@dataclass(frozen=True, slots=True)
class StackHolder:
    """A whole stack and the memory that it holds."""

    frames: list[dict[str, Any]]
    """Innermost first; empty if no stack was recorded."""
    bytes: int
    blocks: int


@dataclass(frozen=True, slots=True)
class Category:
    """The program's own name for a part of its memory; see `labels`."""

    source: str
    name: str
    """The name; "" for memory about which this source says nothing."""
    bytes: int
    blocks: int


def python_frames(stack: Stack) -> Sequence[Frame]:
    """Return the frames that are not compiled code; all frames of a stack of only compiled code."""
    return [frame for frame in stack if not is_compiled(frame)] or stack


def is_compiled(frame: Frame) -> bool:
    """Whether a frame is compiled code, not Python."""
    return _is_compiled_file(frame.filename)


@lru_cache(maxsize=1 << 14)
def _is_compiled_file(name: str) -> bool:
    return _COMPILED.search(name) is not None


def is_library(frame: Frame) -> bool:
    """Whether a frame is compiled code or belongs to a library, not to the program."""
    return _is_library_file(frame.filename)


@lru_cache(maxsize=1 << 14)
def _is_library_file(name: str) -> bool:
    return _is_compiled_file(name) or _LIBRARIES.search(name) is not None


def own_frames(stack: Stack) -> Sequence[Frame]:
    """Return the user's own frames, innermost first; of a stack with only libraries, its Python frames."""
    in_python = python_frames(stack)
    return [frame for frame in in_python if not is_library(frame)] or in_python


def has_python(stack: Stack) -> bool:
    """Whether one of the frames is Python."""
    return any(not is_compiled(frame) for frame in stack)


def line_of(stack: Stack) -> str:
    """Return the innermost line of the user's own; of a stack with only libraries, its innermost Python line."""
    for frame in own_frames(stack):
        return frame_shown(frame)
    return UNKNOWN


def frame_shown(frame: Frame) -> str:
    """Return a frame as file, line and function."""
    return printable(f"{frame.filename}:{frame.line} {frame.name}".rstrip())


def lines_of(stacks: Sequence[Stack], numbers: Sequence[int]) -> list[str]:
    """Return the line of each stack, which is given by its number, -1 for none."""
    lines = {number: line_of(stacks[number]) if number >= 0 else UNKNOWN for number in set(numbers)}
    return [lines[number] for number in numbers]


def lines_of_live(recording: Recording, moment: Moment) -> tuple[list[str], NDArray[np.void]]:
    """Return for each block in use the line that allocated it, and the blocks."""
    lives, places = moment.live
    return lines_of(recording.stacks, recording.stacks_of_all()[lives].tolist()), moment.blocks[places]


def holders(lines: Sequence[str], sizes: NDArray[np.integer], pinned: NDArray[np.int64]) -> list[Holder]:
    """Return what holds the memory in use, largest first.

    The arguments are a line, a size and what it pins, for each block.
    """
    rows = _summed(lines, sizes, pinned)
    return sorted(
        (Holder(line, size, count, kept) for line, (count, size, kept) in rows.items()),
        key=lambda holder: (-holder.bytes, holder.where),
    )


def stack_holders(stacks: Sequence[Stack], numbers: Sequence[int], sizes: NDArray[np.integer]) -> list[StackHolder]:
    """Return the same by whole stack, from the number of each block's stack, -1 for none."""
    rows = _summed(numbers, sizes)
    found = [
        (number, StackHolder([frame._asdict() for frame in stacks[number]] if number >= 0 else [], size, count))
        for number, (count, size) in rows.items()
    ]
    return [holder for _, holder in sorted(found, key=lambda pair: (-pair[1].bytes, pair[0]))]


def categories(source: str, names: Sequence[str], numbers: Sequence[int], sizes: NDArray[np.integer]) -> list[Category]:
    """Return the same by the program's own names, from the number of each block's name, -1 for none."""
    rows = _summed([names[number] if number >= 0 else "" for number in numbers], sizes)
    found = [Category(source, name, size, count) for name, (count, size) in rows.items()]
    return sorted(found, key=lambda category: (-category.bytes, category.name))


def _summed(keys: Sequence[K], *columns: NDArray[np.integer]) -> dict[K, list[int]]:
    """Return by key how many rows have it, and the sum of each column over them."""
    found: dict[K, list[int]] = {}
    for key, *values in zip(keys, *(column.tolist() for column in columns), strict=True):
        sums = found.setdefault(key, [0] * (len(columns) + 1))
        sums[0] += 1
        for place, value in enumerate(values, 1):
            sums[place] += value
    return found
