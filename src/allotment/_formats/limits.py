"""Limits on what reading an untrusted file may cost."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that reading one file may take; exceeding a limit raises a FormatError that names it.

    The defaults admit an honest snapshot of some 25 million trace entries. Where possible they depend on the file's own
    size, so that a small file stays cheap whatever it contains.
    """

    max_bytes: int = 4 * GIB
    """Bytes after decompression."""

    max_ratio: int = 100
    """Bytes after decompression per byte of the file, once `free_bytes` are passed (real snapshots: 9 to 20)."""

    free_bytes: int = 16 * MIB
    """Bytes after decompression to which `max_ratio` does not apply."""

    max_memory: int = 8 * GIB
    """Bytes that the reader may hold at a time, whatever the size of the file."""

    max_density: int = 8
    """Bytes that the reader may hold per byte after decompression, besides `free_memory` (real snapshots: 2 to 4)."""

    free_memory: int = 32 * MIB
    """Bytes that the reader may hold for a file of any size."""
