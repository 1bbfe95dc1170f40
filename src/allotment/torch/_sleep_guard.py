"""Work on memory that sleeps raises an error, instead of one from the device, after which the process has lost its GPU.

Operators are checked in C++ (`_deep/sleep_guard.hpp`), on every thread, and graphs before they are replayed. Both
checks exist only while something sleeps.
"""

from __future__ import annotations

import ctypes
from functools import wraps
from typing import TYPE_CHECKING, Any
from weakref import ref

import torch

from allotment import _logs as logs
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment.errors import PausedError
from allotment.torch._deep.deep import library_at_hand

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator

__all__ = ["guard"]

EXTENTS_MOST = 64
"""EXTENTS_MOST of sleep_guard.hpp."""

Extent = tuple[int, int]
"""The first address, and the one behind the last."""

_Explain = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_uint64, ctypes.POINTER(ctypes.c_char), ctypes.c_size_t)


class _Guard:
    """The checks of this process."""

    def __init__(self) -> None:
        self._lock = fork_safe_lock()
        self._allocators: tuple[ref[Allocator], ...] = ()  # replaced, never changed: any thread may read it
        self._asleep: list[Extent] = []
        self._explain = _Explain(self._explain_address)  # kept, because PyTorch's threads may call it
        self._replay: Any = None  # PyTorch's own, while ours is in its place

    def watch(self, allocator: Allocator) -> None:
        """Check work on an allocator's memory from now on."""
        with self._lock:
            self._allocators = tuple(ref(known) for known in {*self._watched(), allocator})
        allocator.sleep._tell(self._follow)

    def _watched(self) -> list[Allocator]:
        return [known for reference in self._allocators if (known := reference()) is not None]

    def _follow(self) -> None:
        with self._lock:
            asleep = [(base, base + size) for allocator in self._watched() for base, size in allocator.sleep._ranges()]
            asleep = _joined(asleep, EXTENTS_MOST)
            if asleep == self._asleep:
                return
            self._refuse_operators(asleep)
            self._refuse_replays(bool(asleep))
            self._asleep = asleep

    def _refuse_operators(self, asleep: list[Extent]) -> None:
        library = library_at_hand()
        if library is None:
            logs.logger.info("operators on paused memory are not checked: this process has no compiled torch allocator")
            return
        begins = (ctypes.c_uint64 * len(asleep))(*(begin for begin, _ in asleep))
        ends = (ctypes.c_uint64 * len(asleep))(*(end for _, end in asleep))
        library.allotment_torch_refuse_asleep(begins, ends, ctypes.c_size_t(len(asleep)), self._explain)

    def _refuse_replays(self, on: bool) -> None:
        kind = torch.cuda.CUDAGraph
        if on and self._replay is None:
            replay = self._replay = kind.replay
            kind.replay = self._checked(replay)
        elif not on and self._replay is not None and getattr(kind.replay, "__wrapped__", None) is self._replay:
            kind.replay, self._replay = self._replay, None  # unless somebody has wrapped ours meanwhile

    def _checked(self, replay: Any) -> Any:
        @wraps(replay)
        def replay_if_awake(graph: Any) -> None:
            for allocator in self._watched() if self._asleep else ():
                allocator.sleep._require_pool_awake(tuple(graph.pool()))
            replay(graph)

        return replay_if_awake

    def _explain_address(self, address: int, text: Any, capacity: int) -> bool:
        """Write why memory cannot be used now, if it cannot."""
        for allocator in self._watched():
            try:
                allocator.sleep._require_awake(address)
            except PausedError as error:
                words = str(error).encode()[: capacity - 1] + b"\0"
                ctypes.memmove(text, words, len(words))
                return True
        return False


def _joined(extents: list[Extent], most: int) -> list[Extent]:
    """Return at most so many extents that cover these: those with the smallest gaps between them become one."""
    extents = sorted(extents)
    while len(extents) > most:
        at = min(range(len(extents) - 1), key=lambda i: extents[i + 1][0] - extents[i][1])
        extents[at : at + 2] = [(extents[at][0], extents[at + 1][1])]
    return extents


guard = _Guard()
