"""Steps that an interrupt cannot leave half done.

Python raises what a signal handler raises, such as KeyboardInterrupt, in the main thread, between any two steps of its
code. So the main thread has another thread do the work, and waits for it. If an interrupt ends that wait, the work is
completed all the same.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

T = TypeVar("T")


class _Worker:
    """A thread that does one step after the other: a thread for each step would double the cost of opening a block."""

    def __init__(self) -> None:
        self.steps: SimpleQueue[Callable[[], None]] = SimpleQueue()
        self.is_idle = True
        threading.Thread(target=self.work, name="allotment steps", daemon=True).start()

    def can_begin(self) -> bool:
        """Whether no step is left from a call that was interrupted. It may take long: the others do not wait for it."""
        return self.is_idle and self.steps.empty()

    def work(self) -> None:
        while True:
            step = self.steps.get()
            self.is_idle = False
            step()
            del step  # it may keep a result that was dropped
            self.is_idle = True


_workers: list[_Worker] = []


def uninterrupted(work: Callable[[], T]) -> T:
    """Return what `work` returns, or raise what it raises.

    An interrupt drops the result of `work`; the result's finalizer has to undo it.
    """
    if threading.current_thread() is not threading.main_thread():
        return work()
    results: SimpleQueue[T] = SimpleQueue()
    errors: SimpleQueue[BaseException | None] = SimpleQueue()

    def step() -> None:
        try:
            results.put(work())
            errors.put(None)
        except BaseException as error:
            errors.put(error)

    _idle_worker().steps.put(step)
    error = errors.get()
    if error is not None:
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame
    return results.get()


def _idle_worker() -> _Worker:
    for worker in _workers:
        if worker.can_begin():
            return worker
    _workers.append(_Worker())
    return _workers[-1]


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_workers.clear)
