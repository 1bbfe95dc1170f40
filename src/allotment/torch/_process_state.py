"""State that PyTorch set on its allocator, kept for devices that it uses later.

PyTorch's own allocator has a part for each device from the start, so a call affects all of them. Ours is created when a
device is first used, and then gets the state that the others have.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from weakref import WeakSet

from allotment._allocators.caching.allocator import Allocator
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._settings import Settings
from allotment.errors import OutOfMemoryFacts

Observer = Callable[[OutOfMemoryFacts], None]


class ProcessState:
    SKIPPABLE = frozenset(
        {"alloc", "free_requested", "free_completed", "segment_alloc", "segment_free", "oom", "snapshot"}
    )
    """The events that PyTorch before 2.13 can leave out of a history; other names are ignored."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()  # reentrant: code under the lock may use a device for the first time
        self.settings = Settings()
        self.caching = True
        self.deep = False
        """Whether PyTorch's allocator is the torch allocator, and not the plug-in."""
        self.history: dict[str, Any] | None = None
        """Arguments of `Allocator.record_history`; None while nothing is recorded."""
        self.fractions: dict[int, float] = {}
        """The fraction of memory of each device that was limited before its first use."""
        self.observers: list[Observer] = []
        self._applied: WeakSet[Allocator] = WeakSet()

    def apply_to(self, allocator: Allocator) -> None:
        """Apply everything except the settings, which an allocator is created with. Does nothing the second time."""
        with self.lock:
            if allocator in self._applied:
                return
            self._applied.add(allocator)
            if not self.caching:
                allocator.pools.caching = False
            if self.history is not None:
                allocator.record_history(**self.history)
            for observer in self.observers:
                allocator.limits.attach_out_of_memory_observer(observer)


process_state = ProcessState()
