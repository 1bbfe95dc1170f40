"""Steps for `Allocator.on_out_of_memory`: what can be tried before a request fails for want of memory.

    allocator.on_out_of_memory(relief.trim_others(allocator))
    allocator.on_out_of_memory(relief.spill(allocator), tries=4)
    allocator.on_out_of_memory(relief.wait(allocator, seconds=1.0), tries=10)

Each makes a step for one allocator; they are asked in the order in which they were added.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.current import holders_on
from allotment.errors import AllotmentError

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

__all__ = ["spill", "trim_others", "wait"]

_Step = Callable[["OutOfMemoryFacts"], bool]

_FIRST_LOOK = 0.0002
_LONGEST_LOOK = 0.01


def wait(allocator: Allocator, *, seconds: float) -> _Step:
    """Wait until something is freed, by whatever thread, for so many seconds at most; try again if something was.

    Work of other streams needs no such step: before memory is out, it was waited for. Sleeps in short intervals,
    without any lock. Raises TypeError for what is not an `Allocator`, as all of these do.
    """
    _expect_allocator(allocator)

    def step(facts: OutOfMemoryFacts) -> bool:
        end = time.monotonic() + seconds
        look = _FIRST_LOOK
        while allocator._frees_so_far() == freed_at_last_try(facts):
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
    """Pause the tag that was asked for memory longest ago, but not the one that the request is for.

    Its owner has to `resume` it before it is used again. Gives up when no tag is left that has memory.
    """
    _expect_allocator(allocator)

    def step(facts: OutOfMemoryFacts) -> bool:
        for tag, figures in allocator.tags().items():
            if tag != facts.tag and figures["reserved_bytes"] > 0:
                try:
                    if allocator.pause(tag, keep=keep) > 0:
                        return True
                except AllotmentError:
                    continue  # another process has it open, or another thread is at it: the next one may do
        return False

    return step


def trim_others(allocator: Allocator) -> _Step:
    """Empty the caches of the other allocators on the same device, which this process has; try again if that helped."""
    _expect_allocator(allocator)

    def step(facts: OutOfMemoryFacts) -> bool:
        others = [holder for holder in holders_on(allocator.device) if holder is not allocator]
        return sum(_trimmed(other) for other in others) > 0

    return step


def _expect_allocator(given: object) -> None:
    if not isinstance(given, Allocator):
        raise TypeError(f"a step for running out of memory is of an Allocator, not of {type(given).__name__}")


def _trimmed(other: object) -> int:
    trim = getattr(other, "trim_to", None)
    return 0 if trim is None or getattr(other, "closed", False) else trim(0)
