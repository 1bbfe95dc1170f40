"""A caching memory allocator for accelerators and hosts."""

from allotment.allocator import Allocator
from allotment.backends.python import Backend
from allotment.backends.simulated import SimulatedDevice
from allotment.buffer import Buffer
from allotment.capture import Graph, capture
from allotment.config import Settings
from allotment.current import current
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
from allotment.pools import Pool, PoolState
from allotment.streams import Event, Stream
from allotment.tenants import Tenant

__version__ = "0.1.0"

__all__ = [
    "AddressError",
    "Allocator",
    "AllotmentError",
    "Backend",
    "Buffer",
    "CaptureError",
    "CheckpointError",
    "DeviceError",
    "Event",
    "FormatError",
    "Graph",
    "InvariantError",
    "OutOfMemoryError",
    "OutOfMemoryFacts",
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
    "current",
]
