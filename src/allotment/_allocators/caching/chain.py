"""A say when memory runs out: an ordered chain of steps between the last thing the engine tries and the error.

    engine: cache, new memory, release, ... ── out of memory ──> step ──> step ──> step ──> OutOfMemoryError
                        ^                                          |
                        └──────────── "try again" ─────────────────┘   from the start: what was freed is searched too

A step is called with the facts of the request, outside of all locks and on the thread that asked; it may free, pause,
wait, and use the allocator like any other code. What it asks for itself goes without the chain, so that it ends. Each
step has a number of tries for one request, and the next one has its turn when they are used up, when it returns False,
or when it raises an Exception, which is reported through `sys.unraisablehook`. KeyboardInterrupt and SystemExit in a
step propagate to the caller that asked for memory.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from allotment._allocators.upcalls import report_unraisable

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

Step = Callable[["OutOfMemoryFacts"], bool]


@dataclass(frozen=True, eq=False)
class _Link:
    step: Step
    tries: int


class Chain:
    """The steps of one allocator, in order. Safe to use from several threads: a turn goes by those it began with."""

    def __init__(self) -> None:
        self._links: tuple[_Link, ...] = ()
        self._inside: set[int] = set()

    @property
    def has_steps(self) -> bool:
        """Whether there is any step now."""
        return bool(self._links)

    def add(self, step: Step, tries: int) -> Callable[[], None]:
        link = _Link(step, tries)
        self._links += (link,)

        def remove() -> None:
            self._links = tuple(kept for kept in self._links if kept is not link)

        return remove

    def begin(self) -> Turn | None:
        """A turn for a request of the calling thread; None if there is no step, or it is a step that asks."""
        thread = threading.get_ident()
        if not self._links or thread in self._inside:
            return None
        self._inside.add(thread)
        return Turn(self._links)

    def end(self) -> None:
        self._inside.discard(threading.get_ident())


class Turn:
    """The chain for one request."""

    def __init__(self, links: tuple[_Link, ...]) -> None:
        self._links = links
        self._at = 0
        self._used = 0

    def wants_another_try(self, facts: OutOfMemoryFacts) -> bool:
        """Ask the steps in order, from the one that had its turn last."""
        while self._at < len(self._links):
            link = self._links[self._at]
            if self._used < link.tries:
                self._used += 1
                if _ask(link.step, facts):
                    return True
            self._at += 1
            self._used = 0
        return False


def _ask(step: Step, facts: OutOfMemoryFacts) -> bool:
    try:
        return bool(step(facts))
    except Exception as error:  # KeyboardInterrupt and SystemExit end the request
        report_unraisable(error, step)
        return False
