"""Puts Numba's CUDA arrays on an Allotment allocator, as a memory manager plug-in of numba-cuda.

    NUMBA_CUDA_MEMORY_MANAGER=allotment.numba python program.py

or, in the program:

    import allotment.numba

    allotment.numba.install()                           # the shared allocator of each device
    allotment.numba.install(allotment.Allocator("cuda:0", limit="20GiB"))
    allotment.numba.record_stream(array, stream)        # before deleting an array that another stream uses
    allotment.numba.uninstall()

Numba does not say which stream an array is for, so all memory belongs to the default stream. It is counted for the
tenant "numba". Numba has no current stream either: during a capture, its calls count as made on the default stream.
"""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar
from weakref import proxy

from allotment._adapters.frameworks import DeviceTenants, import_framework
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.current import holders_on
from allotment._allocators.opened import open_shared
from allotment._allocators.pinned.allocator import PinnedAllocator
from allotment._devices.per_thread import thread_stream
from allotment._sharing.handle import SharedHandle
from allotment.errors import AddressError, OutOfMemoryError

__all__ = ["IpcHandle", "MemoryManager", "install", "record_stream", "uninstall"]

_cuda = import_framework("allotment.numba", "numba.cuda", "numba-cuda")
_driver = import_framework("allotment.numba", "numba.cuda.cudadrv.driver", "numba-cuda")

_NAME = "numba"
_Base: Any = _cuda.HostOnlyCUDAMemoryManager
_BaseHandle: Any = _cuda.IpcHandle


class IpcHandle(_BaseHandle):  # type: ignore[misc]
    """An array's memory for another process, in Numba's form: `with handle as array:`.

    `allotment.open_shared` opens it, so plain and expandable segments both work. It is closed on request, or with the
    last array. Raises ValueError if it is opened twice, or closed unopened, as Numba's own handle does.
    """

    def __init__(self, base: Any, shared: SharedHandle, size: int, source_info: Any = None, offset: int = 0) -> None:
        super().__init__(base, SimpleNamespace(reserved=shared.to_bytes()), size, source_info, offset)
        self.shared = shared
        self._opened: Any = None

    def open(self, context: Any) -> Any:
        """Open the memory, in Numba's form."""
        if self._opened is not None:
            raise ValueError("IpcHandle is already opened")
        opened = self._opened = open_shared(self.shared)
        pointer = _driver.binding.CUdeviceptr(opened.address + self.offset)
        return _cuda.MemoryPointer(context, pointer, self.size, owner=opened)

    open_direct = open_staged = open  # the device's own memory: there is nothing to stage

    def close(self) -> None:
        """Close it; its arrays must not be used any more."""
        if self._opened is None:
            raise ValueError("IpcHandle not opened")
        opened, self._opened = self._opened, None
        opened.close()

    def __reduce__(self) -> tuple[Any, ...]:
        return IpcHandle, (None, self.shared, self.size, self.source_info, self.offset)


class MemoryManager(_Base):  # type: ignore[misc]
    """Device and pinned memory from allocators; managed and mapped memory as in Numba's own manager.

    Numba creates one for each context, and calls its methods from any thread that uses CUDA.
    """

    tenants: ClassVar[DeviceTenants] = DeviceTenants(_NAME)
    """The allocator for each device; `install` creates a class with its own tenants."""

    def initialize(self) -> None:
        """Called by Numba when the context exists: limits the deallocations that it may delay."""
        if not self.deallocations.memory_capacity:
            self.deallocations.memory_capacity = self.get_memory_info().total

    @property
    def tenant(self) -> Tenant:
        """Allocator of this context's memory, under the name "numba"."""
        return self.tenants.on(_device_number(self.context))

    def memalloc(self, size: int) -> Any:
        """Allocate memory for work on the default stream, or on the calling thread's own if Numba uses those.

        Raises OutOfMemoryError, which is a MemoryError.
        """
        tenants, tenant = self.tenants, self.tenant
        stream = thread_stream() if _uses_streams_of_threads() else 0
        try:
            address = tenant.malloc(size, stream)
        except OutOfMemoryError:
            self.deallocations.clear()
            address = tenant.malloc(size, stream)

        pointer = _driver.binding.CUdeviceptr(address)
        free_on_collection = partial(_free, tenant, address, tenants)
        return _cuda.MemoryPointer(proxy(self.context), pointer, size, finalizer=free_on_collection)

    def memhostalloc(self, size: int, mapped: bool = False, portable: bool = False, wc: bool = False) -> Any:
        """Allocate pinned memory, cached for reuse; mapped or write-combined memory comes from Numba's own manager.

        Once freed, it can be reused at once: as with Numba's own, copies from or to it must be done by then.
        """
        if mapped or wc:
            return super().memhostalloc(size, mapped, portable, wc)
        pinned = self.tenants.pinned_on(_device_number(self.context))
        address = pinned.malloc(size)
        free_on_collection = partial(_free, pinned, address, self.tenants)
        return _driver.PinnedMemory(proxy(self.context), address, size, finalizer=free_on_collection)

    def get_memory_info(self) -> Any:
        """Return the device's free and total memory; memory cached here counts as used."""
        free, total = self.tenant.allocator.memory_info()
        return _cuda.MemoryInfo(free=free, total=total)

    def get_ipc_handle(self, memory: Any) -> Any:
        """Return a handle by which another process opens an array's memory, even if another library allocated it here.

        Its block is held for a minute, then as long as a process has it open. Raises AddressError for memory that no
        allocator of this process has, UnsupportedError if its allocator does not share, DeviceError.
        """
        address = int(memory.handle)
        for allocator in [self.tenant.allocator, *holders_on(self.tenant.allocator.device)]:
            around = allocator._block_around(address)
            if around is not None:
                shared = allocator.share(around[0])
                identity = self.context.device.get_device_identity()
                return IpcHandle(memory, shared, memory.size, identity, address - around[0])
        raise AddressError(f"{address:#x} is not in a live block of an allocator here and cannot be shared", address)

    def reset(self) -> None:
        """Release cached memory. Arrays that still exist stay valid: others may share the allocator."""
        super().reset()
        self.tenant.allocator.empty_cache()

    @property
    def interface_version(self) -> int:
        """Version of Numba's memory manager interface that this implements."""
        return 1


def _uses_streams_of_threads() -> bool:
    """Whether Numba's default stream is the calling thread's own (NUMBA_CUDA_PER_THREAD_DEFAULT_STREAM)."""
    return bool(getattr(getattr(_driver, "config", None), "CUDA_PER_THREAD_DEFAULT_STREAM", 0))


def _device_number(context: Any) -> int:
    """Return the number of a context's device; a context created elsewhere and attached has the driver's device."""
    return int(getattr(context.device, "id", context.device))


def _free(source: Tenant | PinnedAllocator, address: int, tenants: DeviceTenants) -> None:
    """A finalizer that frees memory. Its reference keeps `tenants` alive as long as the memory."""
    source.free(address)


_numba_memory_manager = MemoryManager  # the name that Numba looks up in the module that its environment variable names
_before: Any = None


def install(allocator: Allocator | Tenant | None = None) -> None:
    """Let Numba allocate here from now on; existing arrays stay where they are.

    `allocator` serves its own device, and other devices use their shared allocator; None uses only shared ones. A
    second call replaces the first. Raises RequestError for an allocator that is not on a CUDA device.
    """
    global _before
    members = {"tenants": DeviceTenants(_NAME, allocator), "__module__": __name__}
    manager = type("MemoryManager", (MemoryManager,), members)
    if _before is None:
        _driver._ensure_memory_manager()
        _before = _driver._memory_manager
    _use(manager)


def uninstall() -> None:
    """Restore the manager from before `install`; arrays from here stay valid. Does nothing if not installed."""
    global _before
    if _before is not None:
        _use(_before)
        _before = None


def record_stream(array: Any, stream: Any) -> None:
    """Record that work on `stream` uses an array or a view of one, so that its memory is reused only afterwards.

    `stream` is a stream of any framework, or its handle. Raises AddressError for memory from elsewhere.
    """
    memory = array.gpu_data.owner
    if not isinstance(memory, _cuda.MemoryPointer):
        memory = array.gpu_data  # of an array that another library created
    device = int(memory.context.device.id)
    DeviceTenants.record_stream(_NAME, device, int(memory.handle), stream)


def _use(manager: Any) -> None:
    """Make `manager` Numba's. Numba asks for a manager only when it creates a context, so existing ones are updated
    here.

    Deallocations that wait there are passed to the new manager: with the old one they would be lost.
    """
    _cuda.set_memory_manager(manager)
    driver = _driver.driver
    if not driver.is_initialized or driver.initialization_error is not None:
        return
    for device in _cuda.gpus:
        context = device.primary_context
        if context is not None:
            waiting = context.memory_manager.deallocations
            context.memory_manager = manager(context=context)
            context.memory_manager.deallocations = waiting
            context.prepare_for_use()
