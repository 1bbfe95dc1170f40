"""A caching memory allocator for accelerators and hosts."""

import sys

from allotment import _libraries

_libraries.install()  # before the first import of a compiled module

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

# The locking of the compiled modules relies on the interpreter lock. A free-threaded Python enables that lock for them,
# unless it was told not to.
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    raise ImportError("allotment needs the interpreter lock: start Python without -X gil=0 and PYTHON_GIL=0")

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


def __dir__() -> list[str]:
    return __all__
