"""The outcome of a list of requests."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Plan"]


@dataclass(frozen=True)
class Plan:
    """Result of `Allocator.plan`."""

    fits: bool
    """Whether all of the requests would be served."""
    new_reserved_bytes: int
    """Change of the reserved bytes from now to the end; negative if the requests release more than they reserve."""
    failed_index: int | None
    """Index of the first request that would run out of memory; None if none would."""
