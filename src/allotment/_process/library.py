"""The preloaded library as Python sees it. The process has it from the start, or never."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

NAME_LENGTH = 96
FRAMES = 16
TENANTS = ("jax", "cudnn", "other")
"""The names of the tenants that the library serves, in the library's order."""
DEPTHS = ("count", "serve")
WAYS = ("dlsym", "dlvsym", "cuGetProcAddress")
"""How a caller looked up a function; a caller in none of these ways is linked to it."""

_SetUp = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)


class Overview(ctypes.Structure):
    """The figures of one device, in bytes."""

    _fields_ = [
        (name, ctypes.c_uint64)
        for name in ("context", "modules", "others", "held", "pool_kept", "graphs", "used", "is_measured")
    ]


class Sum(ctypes.Structure):
    """What one library holds of the driver's and the allocator's memory, its calls, and its peak."""

    _fields_ = [(name, ctypes.c_uint64) for name in ("driver", "served", "calls", "peak")]


@dataclass(frozen=True)
class Stack:
    """A native stack that requested memory: code addresses, the innermost first."""

    frames: tuple[int, ...]
    bytes: int
    calls: int


class Preloaded:
    """The functions of the library in this process."""

    def __init__(self, functions: Any) -> None:
        self._functions = functions
        self._kept: list[Any] = []  # kept alive: the library calls them until they are replaced

    @property
    def depth(self) -> str | None:
        """ "count" or "serve"; None while it passes everything through."""
        depth = self._functions.allotment_preload_depth()
        return DEPTHS[depth] if depth >= 0 else None

    def overview(self, device: int) -> Overview | None:
        found = Overview()
        return found if self._functions.allotment_preload_overview(device, ctypes.byref(found)) else None

    def libraries(self, device: int) -> dict[str, Sum]:
        found = {}
        for number in range(self._functions.allotment_preload_libraries()):
            name, own = ctypes.create_string_buffer(NAME_LENGTH), Sum()
            self._functions.allotment_preload_library(device, number, name, ctypes.byref(own))
            found[name.value.decode(errors="replace")] = own
        return found

    def stacks(self) -> Iterator[Stack]:
        frames, held, calls = (ctypes.c_void_p * FRAMES)(), ctypes.c_uint64(), ctypes.c_uint64()
        number = 1
        while length := self._functions.allotment_preload_stack(
            number, frames, ctypes.byref(held), ctypes.byref(calls)
        ):
            yield Stack(tuple(frame or 0 for frame in frames[:length]), held.value, calls.value)
            number += 1

    def ways(self) -> dict[str, dict[str, Any]]:
        """Return the functions looked up or called: "calls", and "found_by", the library that looked it up, by way."""
        return {name: own for name, own in self.known().items() if own["found_by"] or own["calls"]}

    def known(self) -> dict[str, dict[str, Any]]:
        """Return `ways` with all functions of the driver that the library replaces."""
        name, calls, ways = ctypes.c_char_p(), ctypes.c_uint64(), ctypes.c_int()
        asking = (ctypes.c_char_p * len(WAYS))()
        found, number = {}, 0
        while self._functions.allotment_preload_way(
            number, ctypes.byref(name), ctypes.byref(calls), ctypes.byref(ways), asking
        ):
            by = {way: (asking[at] or b"").decode() for at, way in enumerate(WAYS) if ways.value & 1 << at}
            found[(name.value or b"").decode()] = {"calls": calls.value, "found_by": by}
            number += 1
        return found

    def set_up_with(self, function: Callable[[int], bool] | None) -> None:
        """Call `function(device)` when the device's allocator is first needed; None removes it.

        A thread without the interpreter lets another one call it, and goes on without the allocator after a second.
        """
        self._kept.append(_SetUp(function) if function is not None else _SetUp())
        self._functions.allotment_preload_set_up_with(self._kept[-1], ctypes.pythonapi.PyGILState_Check)

    def serve(self, device: int, tables: list[int], home: int) -> None:
        """Serve a device through entry points, one table for each of `TENANTS`, on a stream without other work."""
        given = (ctypes.c_void_p * len(tables))(*tables)
        self._functions.allotment_preload_serve(device, given, ctypes.c_void_p(home))


@cache
def preloaded() -> Preloaded | None:
    """Return the library, if this process was started with it."""
    if sys.platform != "linux":
        return None
    functions = ctypes.CDLL(None)
    return Preloaded(functions) if hasattr(functions, "allotment_preload_version") else None
