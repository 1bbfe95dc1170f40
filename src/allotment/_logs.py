"""What an operator wants to know, for the standard `logging`, under the name "allotment"; silent unless asked for.

Told where a program already waits for a device, never on the way of a request that the cache serves.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from allotment._texts import format_size

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

logger = logging.getLogger("allotment")
logger.addHandler(logging.NullHandler())  # or Python would print what nobody listens to


def out_of_memory(facts: OutOfMemoryFacts) -> None:
    """A request that could not be served."""
    logger.error(
        "%s is out of memory: %s requested, %s in use and %s reserved here, %s free on the device",
        facts.device, format_size(facts.requested), format_size(facts.allocated), format_size(facts.reserved),
        format_size(facts.device_free),
    )  # fmt: skip


def gave_back(device: str, size: int, served: bool) -> None:
    """Cached memory that went back to the device because it had none for a request."""
    logger.warning(
        "%s had no memory for a request: %s of cached memory went back to it, and the request was %s",
        device, format_size(size), "served" if served else "not served all the same",
    )  # fmt: skip


def plain_segments(device: str) -> None:
    """Expandable segments were asked for in vain."""
    logger.warning("%s does not support virtual memory: expandable_segments:True has no effect on it", device)


def fork_refused(why: str) -> None:
    """A forked process wants a device that only its parent can use."""
    logger.error("refused in a forked process: %s", why)
