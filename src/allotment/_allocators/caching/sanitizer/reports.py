"""What the sanitizer finds: two places in a program that nothing orders, or that must not both occur."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from types import FrameType

from allotment._allocators.caching.sanitizer.order import HOST

_INNERMOST = 24

Stack = tuple[tuple[str, int, str], ...]
"""(file, line, function), innermost first."""

WORDS = {
    "race": "two accesses that nothing orders, one of them a write",
    "use after free": "memory was used after it was freed",
    "not recorded": "memory was freed while a stream that was never recorded for it may still use it",
    "reused too early": "memory was used on a stream that does not wait for the work of its previous users",
    "written after free": "freed memory was written: its poison is damaged",
    "overrun": "memory behind a block was written: its redzone is damaged",
    "lent in use": "a graph ran while its pool's memory was lent",
    "lent too long": "a block of lent memory was still in use when its pool took it back",
}


def stack_here(above: FrameType | None = None) -> Stack:
    """Return the calling thread's stack without this package's frames; only the code objects, which is cheap."""
    frame = above or sys._getframe(1)
    found: list[tuple[str, int, str]] = []
    walking: FrameType | None = frame
    while walking is not None and len(found) < _INNERMOST:
        code = walking.f_code
        if not _is_inside(walking.f_globals.get("__name__", "")):
            found.append((code.co_filename, walking.f_lineno, code.co_name))
        walking = walking.f_back
    return tuple(found)


def _is_inside(module: str) -> bool:
    return module.startswith("allotment.") and "._" in module


@dataclass(frozen=True, slots=True)
class Access:
    """An action on a block: `what` is "write", "read", "free", "malloc" or "graph"; `stack` is where it came from.

    `stream` is the handle of the stream that did the work, None for the host.
    """

    what: str
    stream: int | None
    stack: Stack

    def __str__(self) -> str:
        where = "the host" if self.stream is None else f"stream {self.stream:#x}"
        lines = "".join(f"\n      {name}:{line} in {function}" for name, line, function in self.stack)
        return f"{self.what} by {where}{lines or chr(10) + '      (no Python stack)'}"


@dataclass(frozen=True, slots=True)
class Report:
    """One finding. `kind` is a key of WORDS; `first` and `second` are the two places, in the order in which they
    occurred.

    `address` and `size` are those of the block.
    """

    kind: str
    address: int
    size: int
    first: Access
    second: Access

    def __str__(self) -> str:
        return (
            f"{self.kind}: {WORDS[self.kind]} ({self.size} bytes at {self.address:#x})"
            f"\n    first: {self.first}\n    then: {self.second}"
        )


def stream_of(agent: int) -> int | None:
    """Return an agent's number in the form that accesses have."""
    return None if agent == HOST else agent
