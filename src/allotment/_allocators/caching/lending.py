"""Lending: the idle memory of a private pool serves others for a while, because its owner promises not to use it.

A pool of captured graphs has memory between their runs that nothing uses. While it is lent, requests of the default
pool have it before the device is asked, on the streams that it is for. What they get must be freed before the promise
ends, and no graph may run meanwhile: both are checked, and told by the sanitizer where there is one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from allotment._allocators.noted import noted
from allotment.errors import PoolError

if TYPE_CHECKING:
    from allotment._allocators.caching.pool import PoolId


@contextmanager
def lent(allocator: Any, pool: PoolId) -> Iterator[None]:
    """Lend the memory of a pool until the end of the block."""
    sanitizer = allocator._sanitizer
    owned = frozenset(allocator.pools._live_addresses(pool))
    lending: list[PoolId] = []
    kept: list[int] = []
    try:
        noted(lending, pool, allocator.pools._lend, pool)
        if sanitizer is not None:
            sanitizer.lent(pool)
        yield
    finally:
        if lending:
            try:
                if sanitizer is not None:
                    allocator._empty_quarantine()  # what was freed there must not lie in the way of the graphs
            finally:
                kept = allocator.pools._take_back(pool, owned)
            if sanitizer is not None:
                sanitizer.taken_back(pool, kept)
    if kept and sanitizer is None:
        raise PoolError(
            f"pool {pool} on {allocator.device.name} was lent, and others still have {len(kept)} blocks of its memory,"
            f" the first at {kept[0]:#x}; free them before the end of lent()"
        )


def launching(allocator: Any, pool: PoolId, stream: Any) -> None:
    """A graph whose memory is in a pool is about to run."""
    if pool not in allocator.pools._lent:
        return
    if allocator._sanitizer is None:
        raise PoolError(
            f"pool {pool} on {allocator.device.name} is lent, and a graph whose memory it has cannot run meanwhile;"
            " end lent() first"
        )
    allocator._sanitizer.launched(pool, stream)
