"""A caching memory allocator for accelerators and hosts.

A public name loads its module at first use, so a program that only imports the package waits for none of them.
"""

import sys
from importlib import import_module

if sys.version_info < (3, 11) or sys.implementation.name != "cpython":
    raise ImportError(
        f"allotment needs CPython 3.11 or newer, and this is {sys.implementation.name} {sys.version.split()[0]}"
    )

from allotment import _libraries

_libraries.install()  # before the first import of a compiled module

import allotment._core.tools.fork_safe_lock  # noqa: F401  (its hooks around a fork: before those of names used later)

TYPE_CHECKING = False  # type checkers take it for that of `typing`, which would cost more than all of this
if TYPE_CHECKING:
    from allotment._allocators.buffer import Buffer
    from allotment._allocators.caching.allocator import Allocator
    from allotment._allocators.caching.plan import Plan
    from allotment._allocators.caching.pool import Pool, PoolState, graph_pool_handle
    from allotment._allocators.caching.tags import sleep, tag, wake
    from allotment._allocators.caching.tenants import Tenant
    from allotment._allocators.capture import Graph, capture
    from allotment._allocators.current import current
    from allotment._allocators.make import make_allocator
    from allotment._allocators.opened import open_shared, open_shared_torch
    from allotment._allocators.pinned.allocator import PinnedAllocator
    from allotment._allocators.pluggable.allocator import PluggableAllocator
    from allotment._allocators.registry import (
        DeviceAllocator,
        change_current_allocator,
        get_device_allocator,
        register_device_allocator,
    )
    from allotment._allocators.stream_ordered.allocator import AsyncAllocator
    from allotment._devices.python.backend import Backend
    from allotment._devices.simulated.device import SimulatedDevice
    from allotment._devices.streams import Event, Stream
    from allotment._settings import Settings
    from allotment._sharing.handle import SharedHandle
    from allotment.errors import (
        AddressError,
        AllotmentError,
        CaptureError,
        CheckpointError,
        DeviceError,
        FormatError,
        InvariantError,
        OutOfMemoryError,
        OutOfMemoryFacts,
        PausedError,
        PoolError,
        RequestError,
        SanitizerWarning,
        SettingsError,
        SharingError,
        SizeError,
        StreamError,
        UnsupportedError,
    )

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "Allocator",
    "AllotmentError",
    "AsyncAllocator",
    "Backend",
    "Buffer",
    "CaptureError",
    "CheckpointError",
    "DeviceAllocator",
    "DeviceError",
    "Event",
    "FormatError",
    "Graph",
    "InvariantError",
    "OutOfMemoryError",
    "OutOfMemoryFacts",
    "PausedError",
    "PinnedAllocator",
    "Plan",
    "PluggableAllocator",
    "Pool",
    "PoolError",
    "PoolState",
    "RequestError",
    "SanitizerWarning",
    "Settings",
    "SettingsError",
    "SharedHandle",
    "SharingError",
    "SimulatedDevice",
    "SizeError",
    "Stream",
    "StreamError",
    "Tenant",
    "UnsupportedError",
    "__version__",
    "capture",
    "change_current_allocator",
    "current",
    "get_device_allocator",
    "graph_pool_handle",
    "make_allocator",
    "open_shared",
    "open_shared_torch",
    "register_device_allocator",
    "sleep",
    "tag",
    "wake",
]

_MODULES = {
    "AddressError": "errors",
    "Allocator": "_allocators.caching.allocator",
    "AllotmentError": "errors",
    "AsyncAllocator": "_allocators.stream_ordered.allocator",
    "Backend": "_devices.python.backend",
    "Buffer": "_allocators.buffer",
    "CaptureError": "errors",
    "CheckpointError": "errors",
    "DeviceAllocator": "_allocators.registry",
    "DeviceError": "errors",
    "Event": "_devices.streams",
    "FormatError": "errors",
    "Graph": "_allocators.capture",
    "InvariantError": "errors",
    "OutOfMemoryError": "errors",
    "OutOfMemoryFacts": "errors",
    "PausedError": "errors",
    "PinnedAllocator": "_allocators.pinned.allocator",
    "Plan": "_allocators.caching.plan",
    "PluggableAllocator": "_allocators.pluggable.allocator",
    "Pool": "_allocators.caching.pool",
    "PoolError": "errors",
    "PoolState": "_allocators.caching.pool",
    "RequestError": "errors",
    "SanitizerWarning": "errors",
    "Settings": "_settings",
    "SettingsError": "errors",
    "SharedHandle": "_sharing.handle",
    "SharingError": "errors",
    "SimulatedDevice": "_devices.simulated.device",
    "SizeError": "errors",
    "Stream": "_devices.streams",
    "StreamError": "errors",
    "Tenant": "_allocators.caching.tenants",
    "UnsupportedError": "errors",
    "capture": "_allocators.capture",
    "change_current_allocator": "_allocators.registry",
    "current": "_allocators.current",
    "get_device_allocator": "_allocators.registry",
    "graph_pool_handle": "_allocators.caching.pool",
    "make_allocator": "_allocators.make",
    "open_shared": "_allocators.opened",
    "open_shared_torch": "_allocators.opened",
    "register_device_allocator": "_allocators.registry",
    "sleep": "_allocators.caching.tags",
    "tag": "_allocators.caching.tags",
    "wake": "_allocators.caching.tags",
}
"""The module below this package that has each public name."""


def __dir__() -> list[str]:
    return __all__


if not TYPE_CHECKING:  # to a type checker this would be a package with every name

    def __getattr__(name: str) -> object:
        if name not in _MODULES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
        return value
