"""How much a file from somewhere else may cost to read."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Limits"]

MIB = 1 << 20
GIB = 1 << 30


@dataclass(frozen=True, slots=True)
class Limits:
    """The most that reading one file may take; what exceeds a limit ends in a FormatError that names it.

    The defaults leave an honest snapshot of some 25 million trace entries alone. They are about the file's
    own size where possible, so that a small file stays cheap whatever it says.
    """

    max_bytes: int = 4 * GIB
    """Bytes after decompression."""

    max_ratio: int = 100
    """Bytes after decompression for each byte of the file, once `free_bytes` are passed (real snapshots: 9 to 20)."""

    free_bytes: int = 16 * MIB
    """Bytes after decompression that no ratio is asked of."""

    max_memory: int = 8 * GIB
    """Bytes the reader may hold at a time, whatever the size of the file."""

    max_density: int = 8
    """Bytes the reader may hold for each byte after decompression, besides `free_memory` (real snapshots: 2 to 4)."""

    free_memory: int = 32 * MIB
    """Bytes the reader may hold whatever the size of the file is."""
