"""What a list of requests would come to."""

from __future__ import annotations

from typing import NamedTuple

__all__ = ["Plan"]


class Plan(NamedTuple):
    """What `Allocator.plan` found."""

    fits: bool
    """Whether all of the requests would be served."""
    new_reserved_bytes: int
    """What would be reserved at the end, less what is now; below 0 if more would be given back on the way."""
    failed_index: int | None
    """The first request that would end out of memory; None if none would."""
