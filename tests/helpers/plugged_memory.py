"""Functions for a pluggable allocator that record their calls: in C, and in Python."""

from __future__ import annotations

import ctypes
import threading
from pathlib import Path
from typing import Any

from helpers.c_library import compiled

SOURCE = Path(__file__).with_suffix(".c")


class Call(ctypes.Structure):
    _fields_ = [
        ("pointer", ctypes.c_size_t),
        ("stream", ctypes.c_size_t),
        ("filter", ctypes.c_size_t),
        ("size", ctypes.c_size_t),
        ("device", ctypes.c_int),
        ("fraction", ctypes.c_double),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    ]


class Library:
    """The functions of plugged_memory.c, and their records."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.functions = ctypes.CDLL(str(path))

    def __getitem__(self, name: str) -> Any:
        return self.functions[name]

    def address(self, name: str) -> int:
        return ctypes.cast(self.functions[name], ctypes.c_void_p).value or 0

    def last(self, kind: str) -> Call:
        return Call.in_dll(self.functions, f"last_{kind}")

    def count(self, name: str) -> int:
        return ctypes.c_long.in_dll(self.functions, name).value


def build(folder: Path) -> Library:
    return Library(compiled(folder / "plugged_memory.so", SOURCE))


class Memory:
    """Python functions with addresses that no memory has, and their records.

    `script` has the next results: an address or an error.
    """

    def __init__(self) -> None:
        self.calls: list[tuple[Any, ...]] = []
        self.script: list[Any] = []
        self.next_address = 1 << 40
        self.lock = threading.Lock()  # several threads call a plug at once

    def alloc(self, size: int, device: int, stream: int) -> Any:
        self.calls.append(("alloc", size, device, stream))
        with self.lock:
            address = self.next_address
            self.next_address += max(size, 1)
        return self.answer(address)

    def free(self, pointer: int, size: int, device: int, stream: int) -> None:
        self.calls.append(("free", pointer, size, device, stream))
        self.answer(None)

    def answer(self, usual: Any) -> Any:
        if not self.script:
            return usual
        scripted = self.script.pop(0)
        if isinstance(scripted, BaseException):
            raise scripted
        return scripted
