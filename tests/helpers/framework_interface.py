"""The first functions of the framework interface (framework_interface.h), as C code sees them, over simulated devices.

A device stays bound until the process ends, so a test uses this in its own process.
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


class Upcalls(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("gather", ctypes.c_void_p),
        ("frames", ctypes.c_void_p),
        ("record", ctypes.c_void_p),
        ("free_memory", FreeMemory),
        ("current_stream", CurrentStream),
    ]


class BoundDevice(ctypes.Structure):
    _fields_ = [("entry_points", ctypes.POINTER(Table)), ("figures", ctypes.c_void_p * 4)]


class FrameworkInterface(ctypes.Structure):
    _fields_ = [
        ("size", ctypes.c_size_t),
        ("version", ctypes.c_uint32),
        ("failure", ctypes.CFUNCTYPE(ctypes.POINTER(Failure))),
        ("devices", ctypes.POINTER(BoundDevice)),
        ("bind", ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_int)),
        ("take_failure", ctypes.CFUNCTYPE(None, ctypes.c_int)),
        ("was_unknown_address", ctypes.CFUNCTYPE(ctypes.c_int)),
        ("set_upcalls", ctypes.CFUNCTYPE(None, ctypes.POINTER(Upcalls))),
        ("block_size", ctypes.CFUNCTYPE(ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p)),
        ("block_context", ctypes.c_void_p),
        ("largest_block", ctypes.c_void_p),
        ("empty_cache", PoolCall),
        ("create_or_incref_pool", ctypes.c_void_p),
        ("pool_use_count", PoolCall),
    ]

    def entry_points(self, device):
        assert self.bind(device)
        return self.devices[device].entry_points[0]

    def message(self, device):
        """Of the last failure of a device's entry points."""
        self.take_failure(device)
        return self.failure()[0].text.decode()


def interface_over_simulated_devices():
    """Return the framework interface, and the allocators bound to the devices, by index."""
    interface = import_bare("allotment.torch._deep.interface")
    bound_devices = import_bare("allotment.torch._deep.bound_devices")
    allocators = {}

    def tenant_for(index):
        allocators[index] = Allocator(SimulatedDevice(GIB, index))
        return allocators[index].tenant("torch")

    bound_devices.bind_with(tenant_for, SimpleNamespace(lock=threading.RLock(), fractions={}, history=None))
    table = FrameworkInterface.from_address(interface.address())
    table.upcalls = Upcalls(  # kept, because C code calls its functions
        ctypes.sizeof(Upcalls), None, None, None, FreeMemory(lambda: 0), CurrentStream(lambda _: 0)
    )
    table.set_upcalls(table.upcalls)
    return table, allocators
