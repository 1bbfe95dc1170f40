"""A capture that fails is over for the allocator too.

When a capture begins, PyTorch tells the allocator to serve it from the graph's pool; when the device has ended it, to
stop, and when the graph is gone, to release the pool. But if the device cannot end it, because something synchronized
in mid-capture or a stream did not join back, PyTorch 2.11 raises there and then: the allocator is never told to stop,
keeps back what it would release, and the pool stays for the life of the process. So we watch for that.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import wraps
from typing import Any
from weakref import WeakKeyDictionary

import torch  # type: ignore[import-not-found]

from allotment._allocators.caching.pools import PoolId
from allotment.errors import PoolError
from allotment.torch._replacements import allocator_of


@dataclass(frozen=True, slots=True)
class _Capture:
    """One that has begun: what the allocator was told, and where it can be seen whether it goes on."""

    device: int
    pool: PoolId
    stream: Any

    def goes_on(self) -> bool:
        with torch.cuda.stream(self.stream):
            return bool(torch.cuda.is_current_stream_capturing())

    def end_for_the_allocator(self) -> None:
        allocator = allocator_of(self.device)
        try:
            allocator.end_allocate_to_pool(self.pool)
        except PoolError:
            return  # it had not begun, or was told
        allocator.release_pool(self.pool)


_begun: WeakKeyDictionary[Any, _Capture] = WeakKeyDictionary()


def end_failed_captures() -> None:
    """Wrap the beginning and the end of PyTorch's captures, so that one which fails leaves nothing behind."""
    kind = torch.cuda.CUDAGraph
    begin, end = kind.capture_begin, kind.capture_end

    @wraps(begin)
    def capture_begin(self: Any, pool: Any = None, *args: Any, **kwargs: Any) -> None:
        # With a pool named here its id is known. PyTorch would take the next number for itself.
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
            if capture is not None and not capture.goes_on():  # if it does, its end can be tried again
                del _begun[self]
                capture.end_for_the_allocator()
            raise
        _begun.pop(self, None)

    kind.capture_begin, kind.capture_end = capture_begin, capture_end
