"""The part of PyTorch that the adapter's memory functions use, for tests without PyTorch.

Its `torch._C` refuses what PyTorch refuses under a pluggable allocator; `torch.cuda.memory` is written on top of it, as
in PyTorch. `adapter_on_stand_in` installs all of it for one test.
"""

from __future__ import annotations

import importlib
import itertools
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

import allotment
from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice

GIB = 1 << 30

REFUSED = (
    "_accelerator_getDeviceStats",
    "_accelerator_resetAccumulatedStats",
    "_accelerator_resetPeakStats",
    "_cuda_allocationTraceback",
    "_cuda_annotateMemory",
    "_cuda_attach_out_of_memory_observer",
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
    "_cuda_memoryMetadataSupported",
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


class Graph:
    """`torch.cuda.CUDAGraph`: tells the allocator of its capture in the order in which PyTorch 2.11 does."""

    world: World

    def capture_begin(self, pool: tuple[int, int] | None = None, capture_error_mode: str = "global") -> None:
        if self.world.stream == 0:
            raise RuntimeError("CUDA graphs must be captured on a non-default stream.")
        assert pool is not None, "PyTorch would choose one that is known nowhere else"
        self.begun_with = pool
        self.world.allocator.pools.begin_allocate_to_pool(pool)
        if self.world.refuses_captures:
            raise RuntimeError("operation not permitted")
        self.stream = self.world.stream
        self.world.capturing.add(self.stream)

    def capture_end(self) -> None:
        if self.world.stream != self.stream:
            raise RuntimeError("Capture must end on the same stream it began on.")
        self.world.capturing.discard(self.stream)
        if self.world.spoilt:
            raise RuntimeError("operation failed due to a previous error during capture")
        self.world.allocator.pools.end_allocate_to_pool(self.begun_with)

    def reset(self) -> None:
        """After a capture that came to its end."""
        self.world.allocator.pools.release(self.begun_with)


class Switch:
    """What a flag in `torch.backends` is: PyTorch's ContextProp."""

    def __init__(self, getter: Any, setter: Any) -> None:
        self.getter, self.setter = getter, setter

    def __get__(self, module: Any, kind: Any) -> Any:
        return self.getter()

    def __set__(self, module: Any, value: Any) -> None:
        self.setter(value)


class World:
    """The stand-in's facts about its GPUs."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.initialized = False
        self.current = 0
        self.with_context: set[int] = set()
        self.settings: list[str] = []
        self.complaint: Exception | None = None
        """The error that PyTorch's own parser raises for the next settings."""
        self.allocator: Any = None
        """The allocator that graphs call."""
        self.stream = 7
        self.capturing: set[int] = set()
        self.refuses_captures = self.spoilt = False
        self.searches = False
        """Whether cuDNN searches for the fastest convolution."""

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

    @contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        yield
        self.stream = before

    def set_search(self, enabled: bool) -> None:
        self.searches = enabled

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
    c._accelerator_isAllocatorInitialized = c._cuda_cudaCachingAllocator_is_enabled = lambda: True
    c._cuda_hasPrimaryContext = lambda device: device in world.with_context
    c._graph_pool_handle = lambda: (0, next(pool_ids))
    c._accelerator_setAllocatorSettings = world.set_settings
    c._get_cudnn_benchmark = lambda: world.searches
    c._set_cudnn_benchmark = world.set_search
    switches = {"benchmark": Switch(c._get_cudnn_benchmark, c._set_cudnn_benchmark)}
    cudnn = type("CudnnModule", (ModuleType,), switches)("torch.backends.cudnn")
    backends = ModuleType("torch.backends")
    backends.cudnn = cudnn

    cuda._get_device_index = world.device_index
    cuda.is_initialized = lambda: world.initialized
    cuda.init = world.init
    cuda.current_device = world.current_device
    cuda.device_count = lambda: world.count
    cuda.CUDAGraph = type("CUDAGraph", (Graph,), {"world": world})
    cuda.graph_pool_handle = c._graph_pool_handle
    cuda.current_stream = lambda: world.stream
    cuda.stream = world.on_stream
    cuda.is_current_stream_capturing = lambda: world.stream in world.capturing

    for name in PASSED_ON:
        setattr(memory, name, lambda *args, _name=name: _name)
    memory.MemPool = type("MemPool", (), {})
    memory.memory_stats_as_nested_dict = lambda device=None: c._cuda_memoryStats(world.device_index(device, True))
    memory.get_allocator_backend = lambda: c._cuda_getAllocatorBackend()
    for name in vars(memory):
        if not name.startswith("_"):
            setattr(cuda, name, getattr(memory, name))

    torch._C, torch.cuda, torch.device, torch.backends = c, cuda, Device, backends
    cuda.memory, cuda._memory_viz = memory, ModuleType("torch.cuda._memory_viz")
    modules = (torch, c, cuda, memory, backends, cudnn)
    return world, {module.__name__: module for module in modules}


class PlugIn:
    """PyTorch's plug-in object, which gets functions and never calls them."""

    def __getattr__(self, setter: str) -> Any:
        return lambda address: None


def pretend() -> World:
    """Become this process's PyTorch, whose allocator can be replaced."""
    world, modules = stand_in()
    c: Any = modules["torch._C"]
    c._cuda_customAllocator = lambda allocate, free: PlugIn()
    c._cuda_changeCurrentAllocator = lambda plug_in: None
    sys.modules.update(modules)
    return world


ADAPTER = ("process_state", "replacements", "pool", "cudnn", "patching", "memory", "captures")
"""The adapter's modules that are not compiled, in order of import."""


def adapter_on_stand_in(monkeypatch: Any) -> SimpleNamespace:
    """Return the adapter's modules by name, imported anew over a stand-in with two GPUs, and our allocators of both."""
    world, modules = stand_in(2)
    for name, module in modules.items():
        monkeypatch.setitem(sys.modules, name, module)
    package = ModuleType("allotment.torch")  # the package itself would import more than the test needs
    package.__path__ = [f"{allotment.__path__[0]}/torch"]
    monkeypatch.setitem(sys.modules, "allotment.torch", package)
    adapter = {}
    for name in ADAPTER:
        place = f"allotment.torch.{name if name == 'memory' else '_' + name}"
        monkeypatch.setitem(sys.modules, place, package)  # to restore the previous state, there or not
        del sys.modules[place]
        adapter[name] = importlib.import_module(place)
    allocators = [Allocator(SimulatedDevice(GIB, index), settings="") for index in range(2)]
    asked: list[int] = []

    def allocator_of(index: int) -> Allocator:
        asked.append(index)
        return allocators[index]

    for module in adapter.values():
        if hasattr(module, "allocator_of"):
            monkeypatch.setattr(module, "allocator_of", allocator_of)
    world.allocator = allocators[0]
    world.init()
    return SimpleNamespace(world=world, torch=modules["torch"], allocators=allocators, asked=asked, **adapter)
