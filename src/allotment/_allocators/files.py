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
    as a pipe, is written directly. A file of this user keeps its permissions.
    """
    given = os.fsdecode(path)
    try:
        place, status = _found(given)
        if place is None:
            with open(given, "wb") as file:
                yield file
            return
        beside = f"{place}.{os.getpid()}.{next(_numbers)}.part"
        try:
            with open(beside, "xb") as file:
                if status is not None and _is_ours(status):
                    os.chmod(beside, status.st_mode & 0o777)
                yield file
                file.flush()
            os.replace(beside, place)
        except BaseException:
            with suppress(OSError):
                os.unlink(beside)
            raise
    except OSError as error:
        error.filename = given
        del error.filename2  # with None, the message would end in "-> None"
        raise


def _found(given: str) -> tuple[str | None, os.stat_result | None]:
    """Return the path without links of a file, and its facts: (path, None) if there is none yet, (None, facts) if it
    cannot be replaced.

    Only the system knows which links may be followed: in a folder that all users can write, Linux refuses links of
    other users.
    """
    while True:
        place = os.path.realpath(given)
        try:
            status = os.stat(given)
        except FileNotFoundError:
            if os.path.islink(given):
                return place, None
            folder, name = os.path.split(given)  # not `place`: a link may have existed there for a moment
            return os.path.join(os.path.realpath(folder), name), None
        if not stat.S_ISREG(status.st_mode) or status.st_nlink == 0:
            return None, status
        with suppress(FileNotFoundError):
            if os.path.samestat(status, os.stat(place)):  # else it was exchanged meanwhile
                return place, status


def _is_ours(status: os.stat_result) -> bool:
    """Whether this user owns the file. Another user could have chosen permissions that give him access to ours."""
    return not hasattr(os, "geteuid") or status.st_uid == os.geteuid()
