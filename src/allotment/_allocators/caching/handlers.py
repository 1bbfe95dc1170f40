"""Out-of-memory handlers: functions called in order after the engine has tried everything and before the error.

    engine: cache, new memory, release, ... ── out of memory ──> handler ──> handler ──> OutOfMemoryError
                        ^                                             |
                        └───────────── "try again" ───────────────────┘   from the start: what was freed is searched too

A handler is called with the facts of the request, outside of all locks, on the requesting thread. It may free, pause,
wait, and use the allocator like any other code. Its own requests do not invoke handlers, so that the recursion ends.
Each handler has a number of tries for one request. The next handler runs when they are used up, when the handler
returns False, or when it raises an Exception, which `sys.unraisablehook` gets. KeyboardInterrupt and SystemExit in a
handler propagate to the caller that requested memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment._allocators.upcalls import report_unraisable
from allotment._core.tools.fork_safe_lock import fork_safe_lock

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

Step = Callable[["OutOfMemoryFacts"], bool]


@dataclass(frozen=True, eq=False)
class _Handler:
    step: Step
    tries: int


class Handlers:
    """The handlers of one allocator, in order.

    Safe to use from several threads: a request uses the handlers at its begin.
    """

    def __init__(self) -> None:
        self._lock = fork_safe_lock()  # held while the handlers change
        self._handlers: tuple[_Handler, ...] = ()
        self._inside: set[int] = set()

    @property
    def has_handlers(self) -> bool:
        """Whether any handler is registered."""
        return bool(self._handlers)

    def add(self, step: Step, tries: int) -> Callable[[], None]:
        handler = _Handler(step, tries)
        with self._lock:
            self._handlers += (handler,)

        def remove() -> None:
            with self._lock:
                self._handlers = tuple(kept for kept in self._handlers if kept is not handler)

        return remove

    def begin(self) -> Handling | None:
        """Begin with a request of the calling thread; None if no handler exists, or a handler makes the request."""
        thread = threading.get_ident()
        if not self._handlers or thread in self._inside:
            return None
        self._inside.add(thread)
        return Handling(self._handlers)

    def end(self) -> None:
        self._inside.discard(threading.get_ident())


class Handling:
    """One request's pass through the handlers."""

    def __init__(self, handlers: tuple[_Handler, ...]) -> None:
        self._handlers = handlers
        self._at = 0
        self._used = 0

    def wants_another_try(self, facts: OutOfMemoryFacts) -> bool:
        """Call the handlers in order, from the last one called."""
        while self._at < len(self._handlers):
            handler = self._handlers[self._at]
            if self._used < handler.tries:
                self._used += 1
                if _call(handler.step, facts):
                    return True
            self._at += 1
            self._used = 0
        return False


def _call(step: Step, facts: OutOfMemoryFacts) -> bool:
    try:
        return bool(step(facts))
    except Exception as error:  # KeyboardInterrupt and SystemExit end the request
        report_unraisable(error, step)
        return False
