"""As much of PyTorch as the adapter's memory functions touch, for tests without it.

`stand_in(count)` gives modules by name, for `sys.modules`: two simulated GPUs, say, of which the first is in use, and a
`torch._C` that refuses what PyTorch refuses under a pluggable allocator. `torch.cuda.memory` is written in terms of
`torch._C`, as the original is.
"""

from __future__ import annotations

import itertools
from types import ModuleType
from typing import Any

REFUSED = (
    "_accelerator_getDeviceStats",
    "_accelerator_resetAccumulatedStats",
    "_accelerator_resetPeakStats",
    "_cuda_checkPoolLiveAllocations",
    "_cuda_getMemoryFraction",
    "_cuda_isHistoryEnabled",
    "_cuda_memorySnapshot",
    "_cuda_memoryStats",
    "_cuda_record_memory_history",
    "_cuda_record_memory_history_legacy",
    "_cuda_resetAccumulatedMemoryStats",
    "_cuda_resetPeakMemoryStats",
)
SILENT = (
    "_cuda_cudaCachingAllocator_enable",
    "_cuda_getMemoryMetadata",
    "_cuda_setMemoryFraction",
    "_cuda_setMemoryMetadata",
)
PASSED_ON = (
    "CUDAPluggableAllocator",
    "caching_allocator_alloc",
    "caching_allocator_delete",
    "change_current_allocator",
    "empty_cache",
    "host_memory_stats",
    "host_memory_stats_as_nested_dict",
    "list_gpu_processes",
    "mem_get_info",
    "reset_accumulated_host_memory_stats",
    "reset_peak_host_memory_stats",
    "use_mem_pool",
)
"""Functions of `torch.cuda.memory` that the adapter leaves as they are."""


class Device:
    """`torch.device`: a kind and perhaps an index, from "cuda:1"."""

    def __init__(self, text: str) -> None:
        self.type, _, index = text.partition(":")
        self.index = int(index) if index else None

    def __repr__(self) -> str:
        return f"{self.type}:{self.index}"


class World:
    """What the stand-in knows of its GPUs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.initialized = False
        self.current = 0
        self.with_context: set[int] = set()
        self.settings: list[str] = []
        self.complaint: Exception | None = None
        """What PyTorch's own parser raises for the next settings."""

    def init(self) -> None:
        self.initialized = True

    def current_device(self) -> int:
        self.init()
        return self.current

    def device_index(self, device: Any, optional: bool = False) -> int:
        if isinstance(device, int):
            return device
        if isinstance(device, str):
            device = Device(device)
        if isinstance(device, Device):
            if device.type != "cuda":
                raise ValueError(f"Expected a cuda device, but got: {device}")
            if device.index is not None:
                return device.index
        if optional and (device is None or isinstance(device, Device)):
            return self.current_device()
        raise ValueError(f"Expected a torch.device with a specified index or an integer, but got:{device}")

    def set_settings(self, text: str) -> None:
        self.settings.append(text)
        if self.complaint is not None:
            raise self.complaint


def stand_in(count: int = 2) -> tuple[World, dict[str, ModuleType]]:
    world = World(count)
    torch, c, cuda, memory = (ModuleType(name) for name in ("torch", "torch._C", "torch.cuda", "torch.cuda.memory"))
    pool_ids = itertools.count(1)

    def refuse(name: str) -> Any:
        def refused(*args: Any) -> None:
            raise RuntimeError(f"CUDAPluggableAllocator does not yet support {name}.")

        return refused

    for name in REFUSED:
        setattr(c, name, refuse(name))
    for name in SILENT:
        setattr(c, name, lambda *args: None)
    c._cuda_getAllocatorBackend = lambda: "pluggable"
    c._cuda_hasPrimaryContext = lambda device: device in world.with_context
    c._graph_pool_handle = lambda: (0, next(pool_ids))
    c._accelerator_setAllocatorSettings = world.set_settings

    cuda._get_device_index = world.device_index
    cuda.is_initialized = lambda: world.initialized
    cuda.init = world.init
    cuda.current_device = world.current_device
    cuda.device_count = lambda: world.count

    for name in PASSED_ON:
        setattr(memory, name, lambda *args, _name=name: _name)
    memory.MemPool = type("MemPool", (), {})
    memory.memory_stats_as_nested_dict = lambda device=None: c._cuda_memoryStats(world.device_index(device, True))
    memory.get_allocator_backend = lambda: c._cuda_getAllocatorBackend()
    for name in vars(memory):
        if not name.startswith("_"):
            setattr(cuda, name, getattr(memory, name))

    torch._C, torch.cuda, torch.device = c, cuda, Device
    cuda.memory, cuda._memory_viz = memory, ModuleType("torch.cuda._memory_viz")
    return world, {"torch": torch, "torch._C": c, "torch.cuda": cuda, "torch.cuda.memory": memory}
