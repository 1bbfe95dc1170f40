"""`torch.cuda.MemPool` for our allocator: PyTorch refuses to create its own while another allocator is current."""

from __future__ import annotations

import weakref
from contextlib import suppress
from typing import Any

import torch  # type: ignore[import-not-found]

from allotment._allocators.caching.pool import PoolId
from allotment.errors import PoolError, UnsupportedError
from allotment.torch._replacements import allocator_of, memory_snapshot, used_devices


class MemPool:
    """A private pool of the current device, for `use_mem_pool`, with the parameters of `torch.cuda.MemPool`.

    `allocator` must be None. It chooses where a pool of PyTorch's own allocator gets its memory, for instance from
    `allotment.torch.raw_allocator`; this pool's memory comes from Allotment already.
    """

    def __init__(self, allocator: Any = None, use_on_oom: bool = False, no_split: bool = False) -> None:
        if allocator is not None:
            raise UnsupportedError(
                "a MemPool with its own allocator needs PyTorch's native allocator as the current one;"
                " leave allocator out, or do not install Allotment",
                operation="MemPool",
            )
        self._device: int = torch.cuda.current_device()
        # PyTorch's counter also feeds graph_pool_handle, and no two pools may have one id.
        self._id: PoolId = torch._C._graph_pool_handle()
        owner = allocator_of(self._device)
        owner.pools.create_or_incref(self._id, placement="torch" if no_split else None)
        weakref.finalize(self, _give_up, self._device, self._id)
        if use_on_oom:
            owner.pools.set_use_on_oom(self._id, True)
        if no_split:
            owner.pools.set_no_split(self._id)

    @property
    def id(self) -> PoolId:
        """The pool's id, a tuple of two ints."""
        return self._id

    @property
    def device(self) -> int:
        """The index of the device that the pool was made on."""
        return self._device

    @property
    def allocator(self) -> None:
        """What its segments come from, if not from the current allocator."""
        return None

    def use_count(self) -> int:
        """The number of users of the pool: this object, each active `use_mem_pool`, each graph."""
        return allocator_of(self._device).pools.use_count(self._id)

    def snapshot(self, include_traces: bool = True) -> list[dict[str, Any]]:
        """The pool's segments, across all devices."""
        segments: list[dict[str, Any]] = memory_snapshot((*self._id, include_traces))["segments"]
        return segments


def _give_up(device: int, pool: PoolId) -> None:
    allocator_of(device).pools.close(pool)
    for other in used_devices():  # `use_mem_pool` may have created it there
        if other != device:
            with suppress(PoolError):  # it was never created there
                allocator_of(other).empty_cache(pool)
