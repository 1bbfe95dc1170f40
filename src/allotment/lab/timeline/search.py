"""Finds blocks by words of their stacks, by size, stream, pool and lifetime.

    model.py forward >100MiB stream:7 life>1000

All parts must match. A word is searched for in every frame, "file:line function", ignoring case.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from allotment._formats.torch_snapshot import Stack
from allotment._settings import parse_size
from allotment.errors import RequestError, SettingsError
from allotment.lab.timeline.lives import Lives

__all__ = ["find_lives"]

_RELATIONS: dict[str, Callable[[NDArray[np.int64], int], NDArray[np.bool_]]] = {
    ">": np.greater,
    "<": np.less,
    ">=": np.greater_equal,
    "<=": np.less_equal,
    "=": np.equal,
}
_COMPARED = re.compile(r"(size|life|stream|pool)?(>=|<=|>|<|=|:)([\w.]+)")


def find_lives(query: str, lives: Lives, stack_of: NDArray[np.int32], stacks: Sequence[Stack]) -> NDArray[np.bool_]:
    """Return by life whether it matches. Raises RequestError for a meaningless comparison."""
    found = lives.size > 0
    words = []
    for part in query.split():
        compared = _COMPARED.fullmatch(part)
        if compared is None:
            words.append(part.lower())
        else:
            found = found & _holds(part, compared[1] or "size", compared[2].replace(":", "="), compared[3], lives)
    if words:
        hits = [all(word in text for word in words) for text in map(_text_of, stacks)]
        found = found & np.array([*hits, False], dtype=bool)[stack_of]
    return found


def _text_of(stack: Stack) -> str:
    return "\n".join(f"{frame.filename}:{frame.line} {frame.name}" for frame in stack).lower()


def _holds(part: str, what: str, relation: str, value: str, lives: Lives) -> NDArray[np.bool_]:
    column = {
        "size": lives.size,
        "life": lives.end.astype(np.int64) - lives.begin,
        "stream": lives.stream.astype(np.int64),
        "pool": lives.pool.astype(np.int64),
    }[what]
    try:
        # Searches include blocks of a few hundred bytes, so a number without a unit means bytes.
        number = parse_size(value) if what == "size" and not value.isdecimal() else int(value)
        return np.asarray(_RELATIONS[relation](column, number))
    except (SettingsError, ValueError, OverflowError) as error:
        raise RequestError(f'cannot search for {part!r}: give a number, such as ">100MiB" or "life>1000"') from error
