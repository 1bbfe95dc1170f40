"""CuPy on an Allotment allocator: after `install()`, new arrays come from it.

    import allotment.cupy

    allotment.cupy.install()                            # the shared allocator of each device
    allotment.cupy.install(allotment.Allocator("cuda:0", limit="20GiB"))
    with allotment.cupy.using(allocator): ...           # only this thread
    allotment.cupy.record_stream(array, stream)         # before deleting an array that another stream uses
    allotment.cupy.uninstall()

Memory belongs to CuPy's current stream at the time of the request, as with CuPy's own pool. It is counted for the
tenant "cupy".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy

from allotment._adapters.frameworks import DeviceTenants, import_framework, stream_handle
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment.cupy._entry import ALLOCATE, RELEASE, CupySource, PinnedBlock

__all__ = ["install", "pinned_stats", "record_stream", "uninstall", "using"]

_cupy = import_framework("allotment.cupy", "cupy", "cupy-cuda13x")
_memory = import_framework("allotment.cupy", "cupy.cuda.memory", "cupy-cuda13x")
_stream = import_framework("allotment.cupy", "cupy_backends.cuda.stream", "cupy-cuda13x")

_NAME = "cupy"

CupyAllocator = Callable[[int], Any]  # returns a cupy.cuda.MemoryPointer


@dataclass
class _Installed:
    """The allocator from before the first `install`, and this package's pinned memory if CuPy uses it."""

    before: CupyAllocator
    pinned: DeviceTenants | None = None


_installed: _Installed | None = None


def install(allocator: Allocator | Tenant | None = None, pinned: bool = True) -> None:
    """Let CuPy allocate here from now on, on all threads; existing arrays stay where they are.

    `allocator` serves its own device, and other devices use their shared allocator; None uses only shared ones. With
    `pinned`, pinned host memory is cached here too. A second call replaces the first.

    Raises RequestError for an allocator that is not on a CUDA device, and ValueError inside `using`.
    """
    global _installed
    tenants = DeviceTenants(_NAME, allocator)
    before = _cupy.cuda.get_allocator()
    _cupy.cuda.set_allocator(_allocator_for(tenants))
    if _installed is None:
        _installed = _Installed(before)
    if pinned:
        _installed.pinned = tenants
        _cupy.cuda.set_pinned_memory_allocator(_pinned_allocator(tenants))
    else:
        _restore_pinned(_installed)


def uninstall() -> None:
    """Restore the allocator from before `install`, and CuPy's default pool of pinned memory.

    Memory that came from here stays valid, and returns here when it is freed. Does nothing if not installed.
    """
    global _installed
    if _installed is not None:
        _cupy.cuda.set_allocator(_installed.before)
        _restore_pinned(_installed)
        _installed = None


@contextmanager
def using(allocator: Allocator | Tenant | None = None) -> Iterator[None]:
    """Let this thread's CuPy allocate here inside the block."""
    with _cupy.cuda.using_allocator(_allocator_for(DeviceTenants(_NAME, allocator))):
        yield


def record_stream(array: Any, stream: Any) -> None:
    """Record that work on `stream` uses an array, so that its memory is reused only when that work is done.

    `array` is a CuPy array or a view of one, or pinned memory: a `cupy.cuda.PinnedMemoryPointer` or a NumPy array in
    it. `stream` is a stream of any framework, or its handle. Raises AddressError for memory from elsewhere.
    """
    pinned = _pinned_memory_of(array)
    if pinned is not None:
        pinned.record_stream(stream_handle(stream))
    else:
        memory = array.data.mem
        DeviceTenants.record_stream(_NAME, memory.device_id, memory.ptr, stream)


def pinned_stats() -> dict[int, dict[str, int]]:
    """Return the statistics of pinned memory (see `PinnedAllocator.stats`), by device number; empty without it."""
    source = _installed and _installed.pinned
    return {device: pinned.stats() for device, pinned in source.pinned.items()} if source else {}


# Device memory.


def _allocator_for(tenants: DeviceTenants) -> CupyAllocator:
    """Use C functions, if this CuPy exports the current stream to C and raises what a C function raises."""
    try:
        capsule = _stream.__pyx_capi__["get_stream_ptr"]
        source = CupySource(tenants, capsule)
        if _c_functions_can_raise(capsule):
            made: CupyAllocator = _memory.CFunctionAllocator(source.address, ALLOCATE, RELEASE, source).malloc
            return made
    except (AttributeError, KeyError, ValueError):
        pass
    python = _PythonSource(tenants)
    made = _memory.PythonFunctionAllocator(python.allocate, python.free).malloc
    return made


class _Refusal(Exception):
    pass


class _RefusingTenants:
    def on(self, device: int) -> Tenant:
        raise _Refusal


def _c_functions_can_raise(stream_of: Any) -> bool:
    """Whether CuPy propagates an exception from a C function; if not, a failed request would look like memory."""
    source = CupySource(_RefusingTenants(), stream_of)
    try:
        _memory.CFunctionAllocatorMemory(1, source.address, ALLOCATE, RELEASE, 0)
    except _Refusal:
        return True
    except Exception:
        return False
    return False


class _PythonSource:
    """The same as Python functions, which every CuPy version calls."""

    def __init__(self, tenants: DeviceTenants) -> None:
        self._tenants = tenants

    def allocate(self, size: int, device: int) -> int:
        return self._tenants.on(device).malloc(size, stream_handle(_cupy.cuda.get_current_stream(device)))

    def free(self, address: int, device: int) -> None:
        self._tenants.on(device)._free_working_on(address, stream_handle(_cupy.cuda.get_current_stream(device)))


# Pinned memory.


def _pinned_allocator(tenants: DeviceTenants) -> CupyAllocator:
    """Return CuPy's pinned allocator: it returns a pointer to a block that is freed with the pointer.

    Copies that CuPy itself makes in the background keep their block until they are done; the user's own copies are
    waited for if their stream was recorded.
    """
    pinned_on, current_device, pointer = tenants.pinned_on, _cupy.cuda.runtime.getDevice, _cupy.cuda.PinnedMemoryPointer

    def allocate(size: int) -> Any:
        return pointer(PinnedBlock(pinned_on(current_device()), size), 0)

    return allocate


def _pinned_memory_of(array: Any) -> PinnedBlock | None:
    while isinstance(array, (numpy.ndarray, memoryview)):
        array = array.base if isinstance(array, numpy.ndarray) else array.obj
    memory = getattr(array, "mem", None)
    return memory if isinstance(memory, PinnedBlock) else None


def _restore_pinned(installed: _Installed) -> None:
    # CuPy does not tell which allocator it has; initially it is this one.
    if installed.pinned is not None:
        _cupy.cuda.set_pinned_memory_allocator(_cupy.get_default_pinned_memory_pool().malloc)
        installed.pinned = None
