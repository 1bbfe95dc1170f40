"""The part of cuda.core that a memory resource uses, without a GPU."""

from __future__ import annotations

from types import ModuleType, SimpleNamespace
from typing import Any


class MemoryResource:
    pass


class Stream:
    def __init__(self, handle: int) -> None:
        self.handle = handle
        self.syncs = 0

    @staticmethod
    def from_handle(handle: int) -> Stream:
        return Stream(handle)

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.handle

    def sync(self) -> None:
        self.syncs += 1


class Buffer:
    def __init__(self, ptr: int, size: int, mr: Any, stream: Stream) -> None:
        self.handle, self.size, self.memory_resource, self.stream = ptr, size, mr, stream

    @staticmethod
    def from_handle(ptr: int, size: int, mr: Any = None, *, stream: Stream) -> Buffer:
        return Buffer(ptr, size, mr, stream)

    def close(self, stream: Stream | None = None) -> None:
        self.memory_resource.deallocate(self.handle, self.size, stream=stream or self.stream)


def modules() -> dict[str, ModuleType]:
    """Return the modules for sys.modules."""
    core = ModuleType("cuda.core")
    core.__dict__.update(
        Buffer=Buffer,
        Device=lambda: SimpleNamespace(device_id=0),
        LEGACY_DEFAULT_STREAM=Stream(1),
        MemoryResource=MemoryResource,
        Stream=Stream,
        graph=SimpleNamespace(GraphBuilder=type("GraphBuilder", (), {})),
    )
    return {"cuda": ModuleType("cuda"), "cuda.core": core}
