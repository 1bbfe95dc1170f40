"""The allocator that a device's users share when nobody hands them one."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary, ref

if TYPE_CHECKING:
    from allotment.allocator import Allocator
    from allotment.config import Settings
    from allotment.core.backend import Device

_lock = threading.RLock()  # an allocator made under it notes itself
_shared: dict[str, Allocator] = {}
_first_on: WeakKeyDictionary[Device, ref[Allocator]] = WeakKeyDictionary()


def current(device: str = "host", *, settings: str | Settings | None = None) -> Allocator:
    """The shared allocator of a device, made at first use. `Allocator(device)` makes one of your own instead.

    `settings` are for the one that is made; what is there already keeps its own.
    """
    from allotment.allocator import Allocator

    name = "cuda:0" if device == "cuda" else device
    with _lock:
        if name not in _shared:
            _shared[name] = Allocator(name, settings=settings)
        return _shared[name]


def note_allocator(allocator: Allocator) -> None:
    """Remember the first allocator on a device object."""
    with _lock:
        known = _first_on.get(allocator.device)
        if known is None or known() is None:
            _first_on[allocator.device] = ref(allocator)


def allocator_on(device: Device) -> Allocator | None:
    """The first allocator made on this device object, while it lives."""
    known = _first_on.get(device)
    return known() if known is not None else None
