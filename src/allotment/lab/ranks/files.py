"""Finds the files that names, folders and patterns stand for."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Sequence

from allotment.errors import RequestError
from allotment.lab.replay.run import STANDARD_INPUT

__all__ = ["snapshot_files"]

SUFFIXES = (".pickle", ".pkl", ".pickle.gz", ".pkl.gz", ".history", ".history.gz")
"""File names that count as recordings in a folder."""


def snapshot_files(given: Sequence[str]) -> list[str]:
    """Return the files that names, folders and patterns stand for; each once, in the order of their numbers.

    Raises RequestError for a folder or a pattern without any.
    """
    found: list[str] = []
    for name in given:
        if os.path.isdir(name):
            inside = [os.path.join(name, file) for file in os.listdir(name) if file.endswith(SUFFIXES)]
            found += sorted(_expected(inside, f"no snapshot in the folder {name}: no {', '.join(SUFFIXES)}"), key=_rank)
        elif glob.has_magic(name) and not os.path.exists(name):
            matching = [file for file in glob.glob(name, recursive=True) if os.path.isfile(file)]
            found += sorted(_expected(matching, f"no file matches {name}"), key=_rank)
        else:
            found.append(name)
    files = list(dict.fromkeys(found))
    if len(files) > 1 and STANDARD_INPUT in files:
        raise RequestError("standard input (-) cannot be combined with other files")
    return files


def _expected(found: list[str], otherwise: str) -> list[str]:
    if not found:
        raise RequestError(otherwise)
    return found


def _rank(file: str) -> list[tuple[int, int, str]]:
    """Sort by the numbers in a name, so that rank 10 comes after rank 9."""
    parts = re.split(r"(\d+)", file)
    return [(0, int(part), "") if part.isdigit() else (1, 0, part) for part in parts]
