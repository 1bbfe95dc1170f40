"""What a list of requests would come to."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """What `Allocator.plan` found."""

    fits: bool
    """Whether all of the requests would be served."""
    new_reserved_bytes: int
    """What would be reserved at the end, less what is now; below 0 if more would be given back on the way."""
    failed_index: int | None
    """The first request that would end out of memory; None if none would."""
