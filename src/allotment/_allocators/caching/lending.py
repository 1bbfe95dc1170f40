"""Lending: the idle memory of a private pool serves other requests for a while; its owner promises not to use it.

Between runs, a pool of captured graphs has memory that nothing uses. While the pool is lent, requests of the default
pool get that memory before the engine asks the device, on the streams that the memory is for. They must be freed before
the promise ends, and no graph may run meanwhile. Both are checked; with a sanitizer, violations are findings.
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
                    allocator._empty_quarantine()  # blocks kept there must not stay in the graphs' memory
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
    """Check a graph that is about to run, whose memory is in a pool."""
    if pool not in allocator.pools._lent:
        return
    if allocator._sanitizer is None:
        raise PoolError(
            f"pool {pool} on {allocator.device.name} is lent, and a graph that uses its memory cannot run meanwhile;"
            " end lent() first"
        )
    allocator._sanitizer.launched(pool, stream)
