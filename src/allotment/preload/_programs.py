"""Programs in which nothing can be preloaded: the dynamic linker does not run for them, or takes no advice."""

from __future__ import annotations

import os
import stat
import struct
from pathlib import Path

_MAGIC = b"\x7fELF"
_INTERPRETER = 3  # the kind of program header that names the dynamic linker


def is_compiled(path: str) -> bool:
    """Whether a file is a program in machine code."""
    try:
        with open(path, "rb") as file:
            return file.read(4) == _MAGIC
    except OSError:
        return False


def why_not(path: str) -> str | None:
    """Why nothing can be preloaded into a compiled program; None if it can."""
    mode = os.stat(path).st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
        return "it runs with another user's rights, so the system loads no library for us"
    if not _names_a_linker(Path(path).read_bytes()):
        return "it is linked statically, so no library can be loaded first"
    return None


def _names_a_linker(content: bytes) -> bool:
    if len(content) < 64 or content[4] != 2:  # of 32 bits: not ours to read
        return True
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    kinds = [
        struct.unpack_from("<I", content, start + size * at)[0]
        for at in range(count)
        if start + size * at + 4 <= len(content)
    ]
    return _INTERPRETER in kinds
