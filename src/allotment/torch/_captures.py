"""Captures under a plug-in: the allocator learns of a failed capture, and a graph keeps the pools that it used.

When a capture begins, PyTorch has the allocator serve it from the graph's pool. When the device has ended the capture,
PyTorch has it stop, and when the graph is destroyed, release the pool. But if the device cannot end the capture,
because of a synchronization inside it or a stream that did not join, PyTorch raises at once: it never calls the
allocator to stop, and the pool would stay for the life of the process. This module detects that.

From 2.14 on, a graph also keeps the pools that `use_mem_pool` chose during its capture. PyTorch refuses this under a
plug-in, so this module keeps them.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary, finalize

import torch  # type: ignore[import-not-found]

from allotment._allocators.caching.pool import PoolId
from allotment.errors import PoolError
from allotment.torch._replacements import allocator_of


@dataclass(frozen=True, slots=True)
class _Capture:
    """A capture that has begun: what the allocator was called with, and the stream that shows whether it runs."""

    device: int
    pool: PoolId
    stream: Any

    def goes_on(self) -> bool:
        with torch.cuda.stream(self.stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def end_for_the_allocator(self) -> None:
        allocator = allocator_of(self.device)
        try:
            allocator.pools.end_allocate_to_pool(self.pool)
        except PoolError:
            return  # it had not begun, or was ended already
        allocator.pools.release(self.pool)


_begun: WeakKeyDictionary[Any, _Capture] = WeakKeyDictionary()


def end_failed_captures() -> None:
    """Wrap the beginning and the end of PyTorch's captures, so that one which fails leaves nothing behind."""
    kind = torch.cuda.CUDAGraph
    begin, end = kind.capture_begin, kind.capture_end

    @wraps(begin)
    def capture_begin(self: Any, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        # Name a pool here, so that its id is known; otherwise PyTorch takes the next number itself.
        named = torch.cuda.graph_pool_handle() if pool is None else pool
        capture = _Capture(torch.cuda.current_device(), tuple(named), torch.cuda.current_stream())
        others = [(other.device, other.pool) for other in _begun.values()]
        try:
            begin(self, named, *args, **kwargs)
        except BaseException:
            if (capture.device, capture.pool) not in others and not capture.goes_on():
                capture.end_for_the_allocator()
            raise
        _begun[self] = capture

    @wraps(end)
    def capture_end(self: Any) -> None:
        try:
            end(self)
        except BaseException:
            capture = _begun.get(self)
            if capture is not None and not capture.goes_on():  # if it is still capturing, ending it can be retried
                del _begun[self]
                capture.end_for_the_allocator()
            raise
        _begun.pop(self, None)

    kind.capture_begin, kind.capture_end = capture_begin, capture_end


@dataclass(slots=True)
class _KeptPools:
    """The pools that a graph keeps besides its own, each with its device."""

    pools: list[tuple[int, PoolId]]

    def release(self) -> None:
        while self.pools:
            device, pool = self.pools.pop()
            allocator_of(device).pools.release(pool)


_kept: WeakKeyDictionary[Any, _KeptPools] = WeakKeyDictionary()


def keep_pools_of_captures() -> None:
    """Replace the way in which PyTorch's graphs keep pools. Before 2.14 they keep only their own."""
    kind = torch.cuda.CUDAGraph
    if not hasattr(kind, "_retain_pool"):
        return
    reset, own_pools = kind.reset, kind.pools

    def _retain_pool(self: Any, pool: Any) -> None:
        pool_id: PoolId = tuple(getattr(pool, "id", pool))
        device = torch.cuda.current_device()
        kept = _kept.get(self)
        if kept is None:
            kept = _kept[self] = _KeptPools([])
            finalize(self, kept.release)
        if (device, pool_id) not in kept.pools:
            allocator_of(device).pools.create_or_incref(pool_id)
            kept.pools.append((device, pool_id))

    @wraps(own_pools)
    def pools(self: Any) -> list[Any]:
        kept = _kept.get(self)
        return [*own_pools(self), *(torch.cuda._POOL_HANDLE(pool) for _, pool in (kept.pools if kept else ()))]

    @wraps(reset)
    def reset_and_release(self: Any) -> None:
        reset(self)
        kept = _kept.get(self)
        if kept is not None:
            kept.release()

    kind._retain_pool, kind.pools, kind.reset = _retain_pool, pools, reset_and_release
