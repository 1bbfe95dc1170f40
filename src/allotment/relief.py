"""Handlers for `Allocator.on_out_of_memory`, called before a request fails because memory ran out.

    allocator.on_out_of_memory(relief.trim_others(allocator))
    allocator.on_out_of_memory(relief.spill(allocator), tries=4)
    allocator.on_out_of_memory(relief.wait(allocator, seconds=1.0), tries=10)

Each function returns a handler for one allocator; an allocator calls its handlers in the order in which they were
added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.current import holders_on
from allotment.errors import AllotmentError, RequestError

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

__all__ = ["spill", "trim_others", "wait"]

_Step = Callable[["OutOfMemoryFacts"], bool]

_FIRST_LOOK = 0.0002
_LONGEST_LOOK = 0.01


def wait(allocator: Allocator, *, seconds: float) -> _Step:
    """Wait at most `seconds` until any thread frees memory; retry the request if one did.

    Work on other streams needs no handler: the allocator has waited for it before. Sleeps in short intervals, without
    any lock. Raises TypeError for anything other than an `Allocator`, as all functions here do; RequestError for an
    invalid time.
    """
    _expect_allocator(allocator)
    if not isinstance(seconds, int | float) or not seconds >= 0:
        raise RequestError(f"seconds must be a number from 0 on, not {seconds!r}")

    def step(facts: OutOfMemoryFacts) -> bool:
        end = time.monotonic() + seconds
        look = _FIRST_LOOK
        while allocator.limits._frees_so_far() == freed_at_last_try(facts):
            left = end - time.monotonic()
            if left <= 0:
                return False
            time.sleep(min(look, left))
            look = min(2 * look, _LONGEST_LOOK)
        return True

    def freed_at_last_try(facts: OutOfMemoryFacts) -> int:
        return facts.frees

    return step


def spill(allocator: Allocator, *, keep: str = "host") -> _Step:
    """Pause the tag whose last request is longest ago, but not the tag of the current request.

    The tag's owner must `resume` it before using it again. Gives up when no tag with memory is left.
    """
    _expect_allocator(allocator)

    def step(facts: OutOfMemoryFacts) -> bool:
        for tag, figures in allocator.sleep.tags().items():
            if tag != facts.tag and figures["reserved_bytes"] > 0:
                try:
                    if allocator.pause(tag, keep=keep) > 0:
                        return True
                except AllotmentError:
                    continue  # another process has it open, or another thread is pausing it: try the next tag
        return False

    return step


def trim_others(allocator: Allocator) -> _Step:
    """Empty the caches of this process's other allocators on the device; retry the request if that released memory."""
    _expect_allocator(allocator)

    def step(facts: OutOfMemoryFacts) -> bool:
        others = [holder for holder in holders_on(allocator.device) if holder is not allocator]
        return sum(_trimmed(other) for other in others) > 0

    return step


def _expect_allocator(given: object) -> None:
    if not isinstance(given, Allocator):
        raise TypeError(f"an out-of-memory handler needs an Allocator, not {type(given).__name__}")


def _trimmed(other: object) -> int:
    trim = getattr(other, "trim_to", None)
    return 0 if trim is None or getattr(other, "closed", False) else trim(0)
