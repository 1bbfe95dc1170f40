"""Recognizes programs that cannot preload a library: static ones, and those that run with another user's rights."""

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
    """Return why a compiled program cannot preload a library; None if it can."""
    mode = os.stat(path).st_mode
    if mode & (stat.S_ISUID | stat.S_ISGID) and os.geteuid() != 0:
        return "it runs with another user's rights, so the system ignores LD_PRELOAD"
    if not _names_a_linker(Path(path).read_bytes()):
        return "it is linked statically, so no library can be loaded first"
    return None


def _names_a_linker(content: bytes) -> bool:
    if len(content) < 64 or content[4] != 2:  # 32-bit: not parsed here
        return True
    (start,) = struct.unpack_from("<Q", content, 32)
    size, count = struct.unpack_from("<HH", content, 54)
    kinds = [
        struct.unpack_from("<I", content, start + size * at)[0]
        for at in range(count)
        if start + size * at + 4 <= len(content)
    ]
    return _INTERPRETER in kinds
