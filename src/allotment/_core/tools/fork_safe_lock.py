"""Locks of Python code that a fork leaves in order: what `forks` does for those of the engine.

A child of fork has one thread: a lock that any other held at that moment would be held for ever. So a fork takes all
of these, waiting for those who have one, and gives them back on both sides. They are tried, and if one is taken the
others are given back and it starts anew: so they may nest in any order.

The long locks of the engine are taken in the same go, because they nest with these in both orders: who holds one of
these may ask an allocator for something, and a device written in Python is called under its allocator's lock.
"""

from __future__ import annotations

import os
import threading
import time
from typing import Any
from weakref import WeakSet

from allotment._core.tools.forks import give_long_locks, take_long_locks

_locks: WeakSet[Any] = WeakSet()
_taken: list[Any] = []
_PAUSE = 0.0002  # a holder needs the interpreter lock to come to its end


def fork_safe_lock() -> Any:
    """A new `threading.RLock`: reentrant, because the forking thread may hold it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _ahead_of_fork() -> None:
    while not (all(_take(lock) for lock in list(_locks)) and take_long_locks()):
        _give_all()
        time.sleep(_PAUSE)


def _behind_fork() -> None:
    give_long_locks()
    _give_all()


def _take(lock: Any) -> bool:
    taken: bool = lock.acquire(blocking=False)
    if taken:
        _taken.append(lock)
    return taken


def _give_all() -> None:
    while _taken:
        _taken.pop().release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_ahead_of_fork, after_in_parent=_behind_fork, after_in_child=_behind_fork)
