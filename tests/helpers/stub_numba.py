"""The part of numba-cuda that a memory manager uses, without a GPU."""

from __future__ import annotations

import weakref
from types import ModuleType, SimpleNamespace
from typing import Any, NamedTuple


class MemoryInfo(NamedTuple):
    free: int
    total: int


class MemoryPointer:
    def __init__(self, context: Any, pointer: int, size: int, owner: Any = None, finalizer: Any = None) -> None:
        self.context, self.handle, self.size, self._owner = context, pointer, size, owner
        if finalizer is not None:
            weakref.finalize(self, finalizer)

    @property
    def owner(self) -> Any:
        return self if self._owner is None else self._owner

    def view(self, start: int) -> MemoryPointer:
        return MemoryPointer(self.context, self.handle + start, self.size - start, owner=self.owner)


class Deallocations:
    """Deallocations of host memory that are delayed."""

    def __init__(self) -> None:
        self.memory_capacity = 0
        self.clears = 0
        self.on_clear: list[Any] = []

    def clear(self) -> None:
        self.clears += 1
        while self.on_clear:
            self.on_clear.pop()()


class HostOnlyCUDAMemoryManager:
    def __init__(self, *, context: Any) -> None:
        self.context = context
        self.deallocations = Deallocations()

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        return f"native pinned {size}"

    def reset(self) -> None:
        self.deallocations.clear()


class NativeManager(HostOnlyCUDAMemoryManager):
    interface_version = 1

    def initialize(self) -> None:
        pass


class IpcHandle:
    def __init__(self, base: Any, handle: Any, size: int, source_info: Any = None, offset: int = 0) -> None:
        self.base, self.handle, self.size, self.source_info, self.offset = base, handle, size, source_info, offset


class Context:
    """Gets its manager when it is created, as Numba's does."""

    def __init__(self, stub: StubNumba, index: int) -> None:
        self.device = SimpleNamespace(id=index, get_device_identity=lambda: {"gpu": index})
        self.memory_manager = stub.driver._memory_manager(context=self)
        self.prepare_for_use()

    def prepare_for_use(self) -> None:
        self.memory_manager.initialize()

    def array(self, size: int) -> Any:
        return SimpleNamespace(gpu_data=self.memory_manager.memalloc(size))


class StubNumba:
    """`modules` goes into sys.modules."""

    def __init__(self) -> None:
        self.gpus = [SimpleNamespace(primary_context=None) for _ in range(2)]
        self.driver: Any = ModuleType("numba.cuda.cudadrv.driver")
        self.driver.__dict__.update(
            PinnedMemory=MemoryPointer,
            _memory_manager=None,
            _ensure_memory_manager=self._ensure_memory_manager,
            driver=SimpleNamespace(is_initialized=False, initialization_error=None),
            binding=SimpleNamespace(CUdeviceptr=int, CUipcMemHandle=SimpleNamespace),
        )
        cuda = ModuleType("numba.cuda")
        cuda.__dict__.update(
            HostOnlyCUDAMemoryManager=HostOnlyCUDAMemoryManager,
            IpcHandle=IpcHandle,
            MemoryInfo=MemoryInfo,
            MemoryPointer=MemoryPointer,
            gpus=self.gpus,
            set_memory_manager=self._set_memory_manager,
        )
        names = {"numba.cuda": cuda, "numba.cuda.cudadrv.driver": self.driver}
        self.modules = names | {name: ModuleType(name) for name in ("numba", "numba.cuda.cudadrv")}

    def context(self, index: int = 0) -> Context:
        if self.gpus[index].primary_context is None:
            self._ensure_memory_manager()
            self.driver.driver.is_initialized = True
            self.gpus[index].primary_context = Context(self, index)
        return self.gpus[index].primary_context

    def _ensure_memory_manager(self) -> None:
        self.driver._memory_manager = self.driver._memory_manager or NativeManager

    def _set_memory_manager(self, manager: Any) -> None:
        assert manager(context=None).interface_version == 1
        self.driver._memory_manager = manager
