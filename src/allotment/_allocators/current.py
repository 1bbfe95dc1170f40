"""The allocator that all users of a device share, unless they pass their own."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, WeakSet, ref

from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._devices import device_name
from allotment._rules import NEWEST, installed_version
from allotment._settings import from_environment, monitor_requested, settings_of
from allotment.errors import RequestError, UnsupportedError

if TYPE_CHECKING:
    from allotment._allocators.caching.allocator import Allocator
    from allotment._allocators.registry import DeviceAllocator
    from allotment._core.contract.table import Device
    from allotment._settings import Settings

_lock = fork_safe_lock()  # reentrant: an allocator made under it registers itself
_shared: dict[str, DeviceAllocator] = {}
_first_on: WeakKeyDictionary[Device, ref[Allocator]] = WeakKeyDictionary()
_holders: WeakSet[Any] = WeakSet()
_allocators: WeakSet[Any] = WeakSet()
_captures: WeakKeyDictionary[Device, list[Any]] = WeakKeyDictionary()  # in progress; each has `route(allocator)`


# "| Any": to type checkers it is an Allocator, which it nearly always is, and may be used as another kind too.
def current(device: str = "host", *, settings: str | Settings | None = None) -> Allocator | Any:
    """Return the shared allocator of a device: one that `make_allocator` makes on first use, unless it was replaced.

    `settings` apply to an allocator that this call makes; an existing one keeps its own. To make an allocator of your
    own, call `Allocator(device)`. Raises RequestError for an unknown device name, and what `make_allocator` raises.
    Safe to call from several threads: all get the same allocator.
    """
    from allotment._allocators.make import make_allocator

    with _lock:
        name = shared_name(device)
        if name not in _shared or getattr(_shared[name], "closed", False):
            _shared[name] = make_allocator(name, settings=_with_version_of_torch(settings))
        return _shared[name]


def _with_version_of_torch(settings: str | Settings | None) -> Settings:
    """Return the settings, with the rules of the installed PyTorch unless they name others."""
    compat = installed_version() or NEWEST
    return from_environment(compat=compat) if settings is None else settings_of(settings, compat=compat)


def current_caching(device: str = "host", *, settings: str | Settings | None = None) -> Allocator:
    """Return `current`, for code that needs what only a caching allocator has: tenants, entry points, pools.

    Raises UnsupportedError if the current allocator is of another kind.
    """
    from allotment._allocators.caching.allocator import Allocator

    found = current(device, settings=settings)
    if not isinstance(found, Allocator):
        raise UnsupportedError(
            f"{found!r} is the current allocator of {device}, but a caching one is needed here: pass an Allocator"
        )
    return found


def present_caching(name: str) -> Allocator | None:
    """Return the caching allocator that is shared under a name, if the program has made one."""
    from allotment._allocators.caching.allocator import Allocator

    found = _shared.get(name)
    return found if isinstance(found, Allocator) and not found.closed else None


def shared_name(device: str) -> str:
    """Return the name under which a device's allocator is stored. Raises RequestError for an unknown device."""
    return device if device in _shared else device_name(device)


def install(name: str, allocator: DeviceAllocator) -> None:
    """Share `allocator` under a name. The name's present allocator must not be initialized."""
    with _lock:
        present = _shared.get(name)
        if present is not None and getattr(present, "initialized", True):
            raise RequestError(
                f"Can't swap an already initialized allocator: {present!r} serves {name}, and its memory may be in use."
                f" Change it before the first call of current({name!r})"
            )
        _shared[name] = allocator


def note_holder(holder: Any) -> None:
    """Register an object that can look up a device's memory: it has `device` and `_block_around(address)`."""
    with _lock:
        _holders.add(holder)


def holders_on(device: Device) -> list[Any]:
    """Return the registered objects that hold memory of a device."""
    with _lock:
        return [holder for holder in _holders if holder.device is device]


def all_holders() -> list[Any]:
    """Return the registered objects of all devices."""
    with _lock:
        return list(_holders)


def all_allocators() -> list[Any]:
    """Return this process's allocators that cache, or whose device caches; not pinned or plugged memory."""
    with _lock:
        return list(_allocators)


def note_allocator(allocator: Allocator) -> None:
    """Remember the first allocator on a device object."""
    note_holder(allocator)
    if sys.platform == "linux" and (allocator.settings.monitor or monitor_requested()):
        from allotment._monitor.answering import announce  # late: few programs are monitored

        announce(allocator)
    with _lock:
        _allocators.add(allocator)
        known = _first_on.get(allocator.device)
        if known is None or known() is None:
            _first_on[allocator.device] = ref(allocator)
    for capture in list(_captures.get(allocator.device, ())):
        capture.route(allocator)


def begin_routing(device: Device, capture: Any) -> None:
    """Report allocators that are made on a device to a capture, by `route(allocator)`, until `end_routing`."""
    with _lock:
        _captures.setdefault(device, []).append(capture)


def end_routing(device: Device, capture: Any) -> None:
    """Stop reporting to a capture."""
    with _lock:
        if capture in _captures.get(device, ()):
            _captures[device].remove(capture)


def allocator_on(device: Device) -> Allocator | None:
    """Return the first allocator made on this device object, while it lives."""
    known = _first_on.get(device)
    return known() if known is not None else None
