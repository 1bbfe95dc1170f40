"""Whether pickling a buffer shares its memory: only on request, since a reader would expect a copy."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from allotment.errors import RequestError

HOLD_SECONDS = 60.0
_FOR_EVER = 1e9

_hold: ContextVar[float | None] = ContextVar("allotment_pickles_share", default=None)
_holds_of_all_threads: dict[object, float] = {}  # one per `sharing(all_threads=True)` in progress


def checked_hold(hold: float) -> float:
    """Return how long a block is held: infinite from a billion seconds on. Raises RequestError for an invalid time."""
    if not isinstance(hold, int | float) or not hold >= 0:
        raise RequestError(f"hold must be a number of seconds from 0 on, not {hold!r}")
    return hold if hold < _FOR_EVER else math.inf


def hold_of_pickles() -> float | None:
    """Return how long a buffer that is pickled now is held; None: it cannot be pickled."""
    hold = _hold.get()
    return max(_holds_of_all_threads.values(), default=None) if hold is None else hold


@contextmanager
def sharing(hold: float = HOLD_SECONDS, *, all_threads: bool = False) -> Iterator[None]:
    """Within it, in this thread or task, pickling a `Buffer` shares its block, whatever code pickles it.

    The receiver, a process of this machine and user, gets the same memory, and has to open it within `hold` seconds.
    Each pickle is for one receiver: reading it ends its hold. Without `sharing` a `Buffer` cannot be pickled: a pickle
    may be stored, sent to another machine, or read twice, and its reader would expect a copy. With `all_threads` it
    applies to every thread: Dask pickles submitted work later, on its own thread. Raises RequestError for an invalid
    `hold`.
    """
    before, ours = _hold.get(), object()
    try:  # nothing is changed outside of it: an interrupt may come after any call
        hold = checked_hold(hold)
        _hold.set(hold)
        if all_threads:
            _holds_of_all_threads[ours] = hold
        yield
    finally:
        try:
            _hold.set(before)
        finally:
            _holds_of_all_threads.pop(ours, None)
