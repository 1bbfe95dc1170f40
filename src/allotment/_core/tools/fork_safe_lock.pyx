"""Locks of Python code that a fork leaves in order: what `forks` does for those of the engine.

A child of fork has one thread: a lock that any other held at that moment would be held for ever. So a fork takes all
of these, waiting for those who have one, and gives them back on both sides. They are tried, and if one is taken the
others are given back and it starts anew: so they may nest in any order.

The long locks of the engine are taken in the same go, because they nest with these in both orders: who holds one of
these may ask an allocator for something, and a device written in Python is called under its allocator's lock. They are
taken last and given back first, in compiled code, where no other thread gets the interpreter: it could wait for them.
"""

from allotment._core.tools.forks cimport give_long_locks, take_long_locks

import os
import threading
import time
from weakref import WeakSet

_locks = WeakSet()
_taken = []
_PAUSE = 0.0002  # a holder needs the interpreter lock to come to its end


def fork_safe_lock() -> Any:
    """A new `threading.RLock`: reentrant, because the forking thread may hold it."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _ahead_of_fork():
    while not (_take_all() and take_long_locks()):
        _give_all()
        time.sleep(_PAUSE)


def _behind_fork():
    give_long_locks()
    _give_all()


cdef bint _take_all() except -1:
    """False if another thread has one of them."""
    for lock in list(_locks):
        if not lock.acquire(blocking=False):
            return False
        _taken.append(lock)
    return True


cdef int _give_all() except -1:
    while _taken:
        _taken.pop().release()
    return 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_ahead_of_fork, after_in_parent=_behind_fork, after_in_child=_behind_fork)
