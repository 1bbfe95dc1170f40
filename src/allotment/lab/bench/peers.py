"""Other allocators on this machine, each as a pair of functions: for comparisons in one run.

A peer needs its framework and a GPU; on a machine without them the list is empty.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from typing import Any


@dataclass(frozen=True, slots=True)
class Peer:
    """Another project's allocator: `free` takes what `malloc` returns."""

    name: str
    title: str
    malloc: Callable[[int], Any]
    free: Callable[[Any], object]


def _torch() -> Peer | None:
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return None
    torch.empty(1, device="cuda")
    allocate, delete = (
        torch._C._cuda_cudaCachingAllocator_raw_alloc,
        torch._C._cuda_cudaCachingAllocator_raw_delete,
    )
    return Peer("torch", f"PyTorch {torch.__version__}", lambda size: allocate(size, 0), delete)


def _cupy() -> Peer | None:
    cupy = import_module("cupy")
    if cupy.cuda.runtime.getDeviceCount() == 0:
        return None
    pool = cupy.cuda.MemoryPool()
    # A CuPy block frees itself with its last reference; the loop's `free` drops it.
    return Peer("cupy", f"CuPy {cupy.__version__}", pool.malloc, lambda block: None)


def _rmm() -> Peer | None:
    rmm = import_module("rmm")
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 28)
    return Peer("rmm", f"RMM {rmm.__version__}", pool.allocate, lambda block: pool.deallocate(block, 1000))


def installed_peers() -> list[Peer]:
    """Return the peers that can be measured here."""
    found = []
    for make in (_torch, _cupy, _rmm):
        with suppress(Exception):  # not installed, no driver or no device: not a peer on this machine
            peer = make()
            if peer is not None:
                found.append(peer)
    return found
