"""The allocator that a device's users share unless they were handed one of their own."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._devices import device_name
from allotment._monitor.answering import announce_if_asked
from allotment._rules import NEWEST, installed_version
from allotment._settings import from_environment, settings_of
from allotment.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator
    from allotment._allocators.registry import DeviceAllocator
    from allotment._core.contract.table import Device
    from allotment._settings import Settings

_lock = fork_safe_lock()  # an allocator made under it notes itself
_shared: dict[str, DeviceAllocator] = {}
_first_on: WeakKeyDictionary[Device, ref[Allocator]] = WeakKeyDictionary()
_holders: WeakSet[Any] = WeakSet()
_allocators: WeakSet[Any] = WeakSet()
_captures: WeakKeyDictionary[Device, list[Any]] = WeakKeyDictionary()  # going on; each has `route(allocator)`


# "| Any": to type checkers it is an Allocator, which it nearly always is, and may be used as another kind too.
def current(device: str = "host", *, settings: str | Settings | None = None) -> Allocator | Any:
    """The shared allocator of a device: what `make_allocator` makes at first use, unless another was put in its place.

    `settings` are for the one that is made; what is there already keeps its own. `Allocator(device)` makes one of
    your own instead. Raises RequestError for a name that is not a device's, and what `make_allocator` raises. Safe to
    call from several threads: all get the same one.
    """
    from allotment._allocators.make import make_allocator

    with _lock:
        name = shared_name(device)
        if name not in _shared or getattr(_shared[name], "closed", False):
            _shared[name] = make_allocator(name, settings=_with_version_of_torch(settings))
        return _shared[name]


def _with_version_of_torch(settings: str | Settings | None) -> Settings:
    """What is asked for, by the rules of the PyTorch that is installed unless other ones are asked for too."""
    compat = installed_version() or NEWEST
    return from_environment(compat=compat) if settings is None else settings_of(settings, compat=compat)


def current_caching(device: str = "host", *, settings: str | Settings | None = None) -> Allocator:
    """`current`, for those who need what a caching allocator alone has: tenants, entry points, pools.

    Raises UnsupportedError if an allocator of another kind was put in its place.
    """
    from allotment._allocators.caching.allocator import Allocator

    found = current(device, settings=settings)
    if not isinstance(found, Allocator):
        raise UnsupportedError(
            f"{found!r} is the current allocator of {device}, and a caching one is needed here: hand over an Allocator"
        )
    return found


def shared_name(device: str) -> str:
    """The name that a device's allocator is kept under. Raises RequestError for an unknown device."""
    return device if device in _shared else device_name(device)


def install(name: str, allocator: DeviceAllocator) -> None:
    """Share `allocator` under a name, whose present allocator must not be initialized."""
    with _lock:
        present = _shared.get(name)
        if present is not None and getattr(present, "initialized", True):
            raise RequestError(
                f"Can't swap an already initialized allocator: {present!r} serves {name}, and its memory may be in use."
                f" Change it before the first call of current({name!r})"
            )
        _shared[name] = allocator


def note_holder(holder: Any) -> None:
    """Remember who can tell about memory of a device: `device`, `_block_around(address)`."""
    with _lock:
        _holders.add(holder)


def holders_on(device: Device) -> list[Any]:
    """Those that hold memory of a device."""
    with _lock:
        return [holder for holder in _holders if holder.device is device]


def all_holders() -> list[Any]:
    """Those that hold memory of any device."""
    with _lock:
        return list(_holders)


def all_allocators() -> list[Any]:
    """The allocators of this process that keep caches, or leave that to the device; not pinned or plugged memory."""
    with _lock:
        return list(_allocators)


def note_allocator(allocator: Allocator) -> None:
    """Remember the first allocator on a device object."""
    note_holder(allocator)
    announce_if_asked(allocator)
    with _lock:
        _allocators.add(allocator)
        known = _first_on.get(allocator.device)
        if known is None or known() is None:
            _first_on[allocator.device] = ref(allocator)
    for capture in list(_captures.get(allocator.device, ())):
        capture.route(allocator)


def begin_routing(device: Device, capture: Any) -> None:
    """Tell a capture of allocators that are made on a device, by `route(allocator)`, until `end_routing`."""
    with _lock:
        _captures.setdefault(device, []).append(capture)


def end_routing(device: Device, capture: Any) -> None:
    """Tell it no more."""
    with _lock:
        if capture in _captures.get(device, ()):
            _captures[device].remove(capture)


def allocator_on(device: Device) -> Allocator | None:
    """The first allocator made on this device object, while it lives."""
    known = _first_on.get(device)
    return known() if known is not None else None
