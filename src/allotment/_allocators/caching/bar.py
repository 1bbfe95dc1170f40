"""A bar on a terminal, for a person who waits for memory to be paused or resumed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from typing import TextIO

__all__ = ["progress_shown"]

Progress = Callable[[int, int], None]

_AFTER, _INTERVAL = 0.5, 0.1  # seconds: nobody needs a bar for less, nor more drawings
_WIDTH = 30


@contextmanager
def progress_shown(progress: Progress | bool | None, doing: str) -> Iterator[Progress | None]:
    """Yield what is to be called with (bytes done, bytes in total): the caller's function, or a bar for True.

    The bar is drawn on standard error if that is a terminal, and erased in the end. Raises TypeError for what cannot be
    called.
    """
    if progress is None or progress is False:
        yield None
    elif progress is True:
        bar = _Bar(doing, sys.stderr)
        try:
            yield bar if bar.is_seen else None
        finally:
            bar.erase()
    elif callable(progress):
        yield progress
    else:
        raise TypeError(f"progress must be callable or a bool, not {type(progress).__name__}")


class _Bar:
    def __init__(self, doing: str, terminal: TextIO | None) -> None:
        self.is_seen = terminal is not None and terminal.isatty()
        self._doing = doing
        self._terminal = terminal
        self._due = time.monotonic() + _AFTER
        self._is_drawn = False

    def __call__(self, done: int, total: int) -> None:
        if time.monotonic() < self._due:
            return
        filled = _WIDTH * done // max(total, 1)
        self._write(
            f"\r{self._doing} [{'#' * filled}{' ' * (_WIDTH - filled)}] {done / (1 << 30):.1f} of"
            f" {total / (1 << 30):.1f} GiB"
        )
        self._is_drawn = True
        self._due = time.monotonic() + _INTERVAL

    def erase(self) -> None:
        if self._is_drawn:
            self._write("\r\x1b[K")

    def _write(self, text: str) -> None:
        with suppress(OSError, ValueError):  # a terminal that is gone is no reason to fail
            self._terminal.write(text)  # type: ignore[union-attr]
            self._terminal.flush()  # type: ignore[union-attr]
