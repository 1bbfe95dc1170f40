"""Messages for operators, through the standard `logging` under the name "allotment"; silent by default.

Allotment logs where a program already waits for a device, never on the path of a request that the cache serves.

Records about memory that runs short are structured too: `record.event` is a stable name, and `record.facts` holds its
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
logger.addHandler(logging.NullHandler())  # without a handler, Python would print the messages


def out_of_memory(facts: OutOfMemoryFacts) -> None:
    """A request that could not be served."""
    limited = (
        ""
        if facts.limited_by is None
        else f"; the limit of {facts.limited_by}"
        + (f" is {format_size(facts.limit)}" if facts.limit is not None else " was reached")
    )
    logger.error(
        "%s is out of memory: %s requested, %s in use and %s reserved here, %s free on the device%s",
        facts.device, format_size(facts.requested), format_size(facts.allocated), format_size(facts.reserved),
        format_size(facts.device_free), limited, extra={"event": "out_of_memory", "facts": asdict(facts)},
    )  # fmt: skip


def gave_back(device: str, size: int, served: bool) -> None:
    """Cached memory was released because the device had no memory for a request."""
    logger.warning(
        "%s had no memory for a request: %s of cached memory was released, and the request was %s",
        device, format_size(size), "served" if served else "still not served",
        extra={"event": "cache_released", "facts": {"device": device, "released": size, "served": served}},
    )  # fmt: skip


def plain_segments(device: str) -> None:
    """The settings ask for expandable segments, and the device does not support them."""
    logger.warning("%s does not support virtual memory: expandable_segments:True has no effect on it", device)


def shared(device: str, address: int, size: int, way: str) -> None:
    """This process shares memory with another one."""
    logger.debug("%s: block of %s at %#x is shared as %s", device, format_size(size), address, way)


def opened(device: str, address: int, size: int, way: str, process: int) -> None:
    """This process opened memory of another one; process 0 means that the handle does not name it."""
    logger.debug(
        "%s: block of %s of process %s is opened at %#x by %s", device, format_size(size), process or "unknown",
        address, way,
    )  # fmt: skip


def fork_refused(why: str) -> None:
    """A forked process tried to use a device that only its parent can use."""
    logger.error("refused in a forked process: %s", why)


def not_monitored(error: OSError) -> None:
    """The process could not announce itself to `allotment top`."""
    logger.warning("allotment top cannot show this process: %s", error)
