"""Writes a file so that a reader finds the old content or the new, and never a part."""

from __future__ import annotations

import itertools
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import BinaryIO

_numbers = itertools.count()


@contextmanager
def replaced(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Return a file to write, which replaces the one at `path` when it is complete.

    If anything fails, the previous file is still there. An OSError names `path`. A path that is not a plain file, such
    as a pipe, is written directly.
    """
    given = os.fspath(path)
    place = os.path.realpath(given)
    try:
        mode = _mode_of(place)
        if mode is not None and not stat.S_ISREG(mode):
            with open(place, "wb") as file:
                yield file
            return
        beside = f"{place}.{os.getpid()}.{next(_numbers)}.part"
        try:
            with open(beside, "xb") as file:
                if mode is not None:
                    os.chmod(beside, stat.S_IMODE(mode))
                yield file
                file.flush()
            os.replace(beside, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as error:
        error.filename, error.filename2 = given, None
        raise


def _mode_of(place: str) -> int | None:
    try:
        return os.stat(place).st_mode
    except FileNotFoundError:
        return None
