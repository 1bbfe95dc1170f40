"""The part of CuPy that an allocator uses, without a GPU: the same names, calling C functions in the same way.

CuPy's calls hold the interpreter lock, and raise what the function raised when it returns -1: so do those of
`ctypes.PYFUNCTYPE`.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import ModuleType, SimpleNamespace
from typing import Any

STREAM_OF = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_int)
ALLOCATE = ctypes.PYFUNCTYPE(ctypes.c_ssize_t, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
RELEASE = ctypes.PYFUNCTYPE(None, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)

new_capsule = ctypes.pythonapi.PyCapsule_New
new_capsule.restype = ctypes.py_object
new_capsule.argtypes = (ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)


class MemoryPointer:
    def __init__(self, mem: Any, offset: int) -> None:
        self.mem = mem
        self.ptr = mem.ptr + offset


class PinnedMemoryPointer(MemoryPointer):
    pass


class StubCupy:
    """`modules` goes into sys.modules. `stream` and `device` are the current ones."""

    def __init__(self) -> None:
        self.stream = 0
        self.device = 0
        self.synchronized: list[int] = []
        self.c_functions_raise = True
        self._native = SimpleNamespace(malloc=lambda size: f"native {size}")
        self._native_pinned = SimpleNamespace(malloc=lambda size: f"native pinned {size}")
        self._allocator: Callable[[int], Any] = self._native.malloc
        self._in_thread: Callable[[int], Any] | None = None
        self._pinned: Callable[[int], Any] = self._native_pinned.malloc
        self._stream_of = STREAM_OF(lambda device: self.stream)
        self._signatures: list[bytes] = []
        self.modules = self._make_modules(self.capsule(b"intptr_t (int)"))

    def capsule(self, signature: bytes) -> Any:
        """Return the current stream, for C."""
        self._signatures.append(signature)  # which a capsule does not copy
        return new_capsule(ctypes.cast(self._stream_of, ctypes.c_void_p), signature, None)

    # Called by users of CuPy.

    def alloc(self, size: int) -> Any:
        return self.get_allocator()(size)

    def alloc_pinned(self, size: int) -> Any:
        return self._pinned(size)

    def array(self, size: int) -> Any:
        return SimpleNamespace(data=self.alloc(size))

    # The state of CuPy.

    def get_allocator(self) -> Callable[[int], Any]:
        return self._in_thread or self._allocator

    def _set_allocator(self, allocator: Callable[[int], Any]) -> None:
        self._allocator = allocator

    def _set_pinned(self, allocator: Callable[[int], Any]) -> None:
        self._pinned = allocator

    @contextmanager
    def _using_allocator(self, allocator: Callable[[int], Any]) -> Iterator[None]:
        self._in_thread, before = allocator, self._in_thread
        try:
            yield
        finally:
            self._in_thread = before

    def _make_modules(self, stream_of: Any) -> dict[str, Any]:
        stub = self

        class CFunctionAllocatorMemory:
            def __init__(self, size: int, param: int, malloc: int, free: int, device_id: int) -> None:
                self.ptr, self.size, self.device_id = 0, size, device_id
                self._param, self._free = param, RELEASE(free)
                try:
                    self.ptr = ALLOCATE(malloc)(param, size, device_id)
                except Exception:
                    if stub.c_functions_raise:
                        raise
                    self.ptr = -1

            def __del__(self) -> None:
                if self.ptr:
                    self._free(self._param, self.ptr & (1 << 64) - 1, self.device_id)

        class CFunctionAllocator:
            def __init__(self, param: int, malloc: int, free: int, owner: Any) -> None:
                self._arguments, self._owner = (param, malloc, free), owner

            def malloc(self, size: int) -> MemoryPointer:
                return MemoryPointer(CFunctionAllocatorMemory(size, *self._arguments, stub.device), 0)

        class PythonFunctionAllocatorMemory:
            def __init__(self, size: int, malloc: Any, free: Any, device_id: int) -> None:
                self.ptr, self.size, self.device_id, self._free = 0, size, device_id, free
                self.ptr = malloc(size, device_id)

            def __del__(self) -> None:
                if self.ptr:
                    self._free(self.ptr, self.device_id)

        class PythonFunctionAllocator:
            def __init__(self, malloc: Any, free: Any) -> None:
                self._functions = malloc, free

            def malloc(self, size: int) -> MemoryPointer:
                return MemoryPointer(PythonFunctionAllocatorMemory(size, *self._functions, stub.device), 0)

        def current_stream(device: int | None = None) -> Any:
            return SimpleNamespace(ptr=stub.stream, synchronize=lambda: stub.synchronized.append(stub.stream))

        memory = ModuleType("cupy.cuda.memory")
        memory.__dict__.update(
            CFunctionAllocator=CFunctionAllocator,
            CFunctionAllocatorMemory=CFunctionAllocatorMemory,
            PythonFunctionAllocator=PythonFunctionAllocator,
        )
        cuda = ModuleType("cupy.cuda")
        cuda.__dict__.update(
            memory=memory,
            get_allocator=self.get_allocator,
            set_allocator=self._set_allocator,
            using_allocator=self._using_allocator,
            set_pinned_memory_allocator=self._set_pinned,
            get_current_stream=current_stream,
            PinnedMemoryPointer=PinnedMemoryPointer,
            runtime=SimpleNamespace(getDevice=lambda: self.device),
        )
        cupy = ModuleType("cupy")
        cupy.__dict__.update(cuda=cuda, get_default_pinned_memory_pool=lambda: self._native_pinned)
        stream = ModuleType("cupy_backends.cuda.stream")
        stream.__dict__["__pyx_capi__"] = {"get_stream_ptr": stream_of}
        names = {"cupy": cupy, "cupy.cuda": cuda, "cupy.cuda.memory": memory, "cupy_backends.cuda.stream": stream}
        return names | {name: ModuleType(name) for name in ("cupy_backends", "cupy_backends.cuda")}
