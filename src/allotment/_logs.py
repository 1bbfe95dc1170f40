"""What an operator wants to know, for the standard `logging`, under the name "allotment"; silent unless asked for.

Told where a program already waits for a device, never on the way of a request that the cache serves.

Records of memory that runs short are structured too: `record.event` is a name that stays, and `record.facts` holds its
figures as plain values, which a JSON formatter can write.
"""

from __future__ import annotations

import logging
from dataclasses import asdict
from typing import TYPE_CHECKING

from allotment._texts import format_size

if TYPE_CHECKING:
    from allotment.errors import OutOfMemoryFacts

logger = logging.getLogger("allotment")
logger.addHandler(logging.NullHandler())  # or Python would print what nobody listens to


def out_of_memory(facts: OutOfMemoryFacts) -> None:
    """A request that could not be served."""
    limited = (
        ""
        if facts.limited_by is None
        else f"; the limit of {facts.limited_by}"
        + (f" is {format_size(facts.limit)}" if facts.limit is not None else " stood in the way")
    )
    logger.error(
        "%s is out of memory: %s requested, %s in use and %s reserved here, %s free on the device%s",
        facts.device, format_size(facts.requested), format_size(facts.allocated), format_size(facts.reserved),
        format_size(facts.device_free), limited, extra={"event": "out_of_memory", "facts": asdict(facts)},
    )  # fmt: skip


def gave_back(device: str, size: int, served: bool) -> None:
    """Cached memory that went back to the device because it had none for a request."""
    logger.warning(
        "%s had no memory for a request: %s of cached memory went back to it, and the request was %s",
        device, format_size(size), "served" if served else "not served all the same",
        extra={"event": "cache_released", "facts": {"device": device, "released": size, "served": served}},
    )  # fmt: skip


def plain_segments(device: str) -> None:
    """Expandable segments were asked for in vain."""
    logger.warning("%s does not support virtual memory: expandable_segments:True has no effect on it", device)


def shared(device: str, address: int, size: int, way: str) -> None:
    """Memory of this process goes to another one."""
    logger.debug("%s: block of %s at %#x is shared as %s", device, format_size(size), address, way)


def opened(device: str, address: int, size: int, way: str, process: int) -> None:
    """Memory of another process is open in this one; process 0 is one that the handle does not name."""
    logger.debug(
        "%s: block of %s of process %s is opened at %#x by %s", device, format_size(size), process or "unknown",
        address, way,
    )  # fmt: skip


def fork_refused(why: str) -> None:
    """A forked process wants a device that only its parent can use."""
    logger.error("refused in a forked process: %s", why)


def not_monitored(error: OSError) -> None:
    """The process wanted to announce itself to `allotment top`, and could not."""
    logger.warning("allotment top cannot show this process: %s", error)
