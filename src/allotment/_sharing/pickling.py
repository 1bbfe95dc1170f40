"""Whether a buffer that is pickled travels as the same memory: where a copy would be expected, only if asked for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from allotment.errors import RequestError

HOLD_SECONDS = 60.0

_hold: ContextVar[float | None] = ContextVar("allotment_pickles_share", default=None)
_holds_of_all_threads: list[float] = []  # of each `sharing(all_threads=True)` that is not over


def checked_hold(hold: float) -> float:
    """For how long a block is held. Raises RequestError for what is not a time."""
    if not isinstance(hold, int | float) or not hold >= 0:
        raise RequestError(f"hold must be a number of seconds from 0 on, not {hold!r}")
    return hold


def hold_of_pickles() -> float | None:
    """For how long a buffer is held that is pickled now; None: it cannot be pickled."""
    hold = _hold.get()
    return max(_holds_of_all_threads, default=None) if hold is None else hold


@contextmanager
def sharing(hold: float = HOLD_SECONDS, *, all_threads: bool = False) -> Iterator[None]:
    """Within it, in this thread or task, pickling a `Buffer` shares its block, whoever pickles.

    The receiver, a process of this machine and user, gets the same memory, and has to open it within `hold` seconds.
    Without it a `Buffer` cannot be pickled: a pickle may be stored, sent to another machine, or read twice, and who
    reads it would expect a copy. With `all_threads` it holds for every thread: what is submitted to Dask is pickled
    later, by a thread of its own. Raises RequestError for a `hold` that is not a time.
    """
    token = _hold.set(checked_hold(hold))
    if all_threads:
        _holds_of_all_threads.append(hold)
    try:
        yield
    finally:
        _hold.reset(token)
        if all_threads:
            _holds_of_all_threads.remove(hold)
