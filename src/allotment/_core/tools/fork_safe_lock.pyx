"""Locks of Python code that survive a fork, as `forks` makes the engine's locks do.

A child of fork has one thread. A lock that another thread held at that moment would stay locked for ever. So a fork
acquires all of these locks, waiting for their holders, and releases them in parent and child. The fork tries all of
them; if one is held, it releases the others and starts again. So they may nest in any order.

The fork acquires the engine's long locks in the same step, because they nest with these in both orders: a thread that
holds one of these may call an allocator, and a device written in Python runs under its allocator's lock. The fork
acquires the long locks last and releases them first. It does so in compiled code, where no other thread gets the
interpreter and could wait for them.

Many names of the package load their module at first use. If another thread does that during a fork, the lock of this
module stays locked in the child. So a fork also waits until no other thread imports a module of the package, but not
for ever: what that thread imports may wait for the thread that forks.
"""

from allotment._core.tools.forks cimport give_long_locks, take_long_locks

import os
import threading
import time
from importlib import _bootstrap  # no public function tells which thread imports what
from weakref import ref

_locks = set()  # weak references. A plain set, because its copy is of one moment
_taken = []     # by the thread that forks; only the thread that holds all locks changes it
_PAUSE = 0.0002  # seconds; a holder needs the interpreter lock to finish
_LONGEST_IMPORT = 10  # seconds


def fork_safe_lock() -> Any:
    """Return a new `threading.RLock`: reentrant, because the forking thread may hold it."""
    lock = threading.RLock()
    _locks.add(ref(lock, _locks.discard))
    return lock


def _living():
    return [lock for reference in _locks.copy() if (lock := reference()) is not None]


def _ahead_of_fork():
    cdef double give_up = time.monotonic() + _LONGEST_IMPORT
    while True:
        while not _take_both():
            time.sleep(_PAUSE)
        if not _others_import() or time.monotonic() > give_up:
            return
        _behind_fork()
        time.sleep(_PAUSE)


def _behind_fork():
    give_long_locks()
    _release(_taken)


cdef bint _others_import() except -1:
    """Return whether another thread imports a module of the package."""
    cdef object own = threading.get_ident()
    for name, reference in list(getattr(_bootstrap, "_module_locks", {}).items()):
        if name.partition(".")[0] == "allotment" and getattr(reference(), "owner", None) not in (None, own):
            return True
    return False


cdef bint _take_both() except -1:
    if not _take_all():
        return False
    if not take_long_locks():
        _release(_taken)
        return False
    return True


cdef bint _take_all() except -1:
    """Return False, holding none, if another thread holds one of the locks, perhaps for its own fork."""
    cdef list taken = []
    for lock in _living():
        if not lock.acquire(blocking=False):
            _release(taken)
            return False
        taken.append(lock)
    _taken.extend(taken)
    return True


cdef int _release(list taken) except -1:
    while taken:
        taken.pop().release()
    return 0


if hasattr(os, "register_at_fork"):
    os.register_at_fork(before=_ahead_of_fork, after_in_parent=_behind_fork, after_in_child=_behind_fork)
