"""Releases cached memory that arrays do not need to the system after a while.

Each cache is checked at its interval. The peak use since the last check is kept, so that a loop keeps what it uses;
idle memory beyond that is released. One thread checks all caches, also those whose `caching` block has ended, until
nothing of theirs is left. A forked child, which does not inherit threads, starts a new one.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from weakref import ref

from allotment._allocators.caching.allocator import Allocator
from allotment.errors import AllotmentError, RequestError
from allotment.numpy._handler import NumpyCache

_LEAST_SECONDS = 0.01


class _Watched:
    """A cache and its allocator, both weakly referenced, and when to check them next.

    The cache ends with its `caching` block; its arrays may still return memory to the allocator then.
    """

    def __init__(self, cache: NumpyCache, seconds: float) -> None:
        self._cache = ref(cache)
        self._allocator: ref[Allocator] = ref(cache.tenant.allocator)
        self._seconds = seconds
        self.due = time.monotonic() + seconds

    def look(self) -> bool:
        """Release what is idle; return whether to check again."""
        self.due = time.monotonic() + self._seconds
        cache, allocator = self._cache(), self._allocator()
        if allocator is None or allocator.closed:
            return False
        keep = allocator.stats()["allocated_bytes.all.current"]
        if cache is not None:
            keep += cache.take_peak() - cache.live_bytes
        try:
            allocator.trim_to(max(keep, 0))
        except AllotmentError:
            return True  # the device may refuse at a bad moment; there will be another check
        return cache is not None or allocator.stats()["reserved_bytes.all.current"] > 0


class _Keeper:
    """The thread that checks the caches."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._watched: list[_Watched] = []
        self._thread: threading.Thread | None = None

    def watch(self, cache: NumpyCache, seconds: float) -> None:
        with self._changed:
            self._watched.append(_Watched(cache, seconds))
            self._start()
            self._changed.notify()

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="allotment idle memory", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        while True:
            with self._changed:
                if not self._watched:
                    self._thread = None
                    return
                wait = min(watched.due for watched in self._watched) - time.monotonic()
                if wait > 0:
                    self._changed.wait(wait)
                due = [watched for watched in self._watched if watched.due <= time.monotonic()]
            done = [watched for watched in due if not watched.look()]
            with self._changed:
                self._watched = [watched for watched in self._watched if watched not in done]
            del due, done  # frees what they hold now, not when the next one is due

    def stop(self) -> None:
        with self._changed:
            thread, self._watched = self._thread, []
            self._changed.notify()
        if thread is not None:
            thread.join()

    def start_anew(self) -> None:
        """In a forked child: the parent's thread is gone, and its locks may stay locked for ever."""
        self._changed, self._thread = threading.Condition(), None
        if self._watched:
            self._start()


_keeper = _Keeper()
atexit.register(_keeper.stop)
os.register_at_fork(after_in_child=_keeper.start_anew)


def watch(cache: NumpyCache, seconds: float | None) -> None:
    """Release what a cache has not used for so many seconds; None: never."""
    if seconds is None:
        return
    if not isinstance(seconds, (int, float)) or not _LEAST_SECONDS <= seconds < threading.TIMEOUT_MAX:
        raise RequestError(f"idle_seconds must be a number of at least {_LEAST_SECONDS}, or None, not {seconds!r}")
    _keeper.watch(cache, float(seconds))
