"""The first of the points of deep mode (allotment_points.h), as C code sees them, over simulated devices.

What serves a device does so to the end of the process, so a test uses this in a process of its own.
"""

import ctypes
import threading
from types import SimpleNamespace

from allotment import Allocator, SimulatedDevice
from helpers.bare_packages import import_bare
from helpers.entry_points import Table

GIB = 1 << 30

PoolCall = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64)
FreeMemory = ctypes.CFUNCTYPE(ctypes.c_int)
CurrentStream = ctypes.CFUNCTYPE(ctypes.c_uint64, ctypes.c_int)


class Failure(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("text", ctypes.c_char_p)]


class Framework(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("gather", ctypes.c_void_p),
        ("frames", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("free_memory", FreeMemory),
        ("current_stream", CurrentStream),
    ]


class Points(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("failure", ctypes.CFUNCTYPE(ctypes.POINTER(Failure))),
        ("tables", ctypes.POINTER(ctypes.POINTER(Table))),
        ("table_of", ctypes.CFUNCTYPE(ctypes.POINTER(Table), ctypes.c_int)),
        ("take_failure", ctypes.CFUNCTYPE(None, ctypes.c_int)),
        ("is_not_ours", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("serve", ctypes.CFUNCTYPE(None, ctypes.POINTER(Framework))),
        ("block_size", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)),
        ("block_context", ctypes.c_void_p),
        ("gauges", ctypes.c_void_p),
        ("largest_block", ctypes.c_void_p),
        ("empty_cache", PoolCall),
        ("create_or_incref_pool", ctypes.c_void_p),
        ("pool_use_count", PoolCall),
    ]

    def words(self, device):
        """Of the last failure of a function of a device's table."""
        self.take_failure(device)
        return self.failure()[0].text.decode()


def points_over_simulated_devices():
    """The points, and the allocators that serve the devices, by index."""
    points, served = import_bare("allotment.torch._deep.points"), import_bare("allotment.torch._deep.served")
    allocators = {}

    def settle(index):
        allocators[index] = Allocator(SimulatedDevice(GIB, index))
        return allocators[index].tenant("torch")

    served.serve_with(settle, SimpleNamespace(lock=threading.RLock(), fractions={}, history=None))
    found = Points.from_address(points.address())
    found.framework = Framework(  # kept, for C code has its functions
        ctypes.sizeof(Framework), None, None, None, FreeMemory(lambda: 0), CurrentStream(lambda _: 0)
    )
    found.serve(found.framework)
    return found, allocators
