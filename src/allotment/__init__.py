"""A caching memory allocator for accelerators and hosts."""

from allotment.allocator import Allocator
from allotment.backends.python import Backend
from allotment.backends.simulated import SimulatedDevice
from allotment.buffer import Buffer
from allotment.capture import Graph, capture
from allotment.config import Settings
from allotment.current import current
from allotment.driver_pool import AsyncAllocator
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
    PoolError,
    RequestError,
    SettingsError,
    SizeError,
    StreamError,
    UnsupportedError,
)
from allotment.pluggable import PluggableAllocator
from allotment.pools import Pool, PoolState
from allotment.registry import (
    DeviceAllocator,
    change_current_allocator,
    get_device_allocator,
    register_device_allocator,
)
from allotment.streams import Event, Stream
from allotment.tenants import Tenant

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
    "PluggableAllocator",
    "Pool",
    "PoolError",
    "PoolState",
    "RequestError",
    "Settings",
    "SettingsError",
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
    "register_device_allocator",
]
