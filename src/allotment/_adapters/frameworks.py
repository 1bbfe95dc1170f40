"""What the adapters share: finding their framework, a tenant on each device, and streams by number."""

from __future__ import annotations

from importlib import import_module
from typing import Any
from weakref import WeakSet

from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.current import current_caching
from allotment._allocators.pinned.allocator import PinnedAllocator
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._devices.per_thread import thread_stream
from allotment.errors import AddressError, RequestError

LEGACY_STREAM = 1  # another name of the default stream, 0
PER_THREAD_STREAM = 2  # the default stream of the thread that names it


def import_framework(adapter: str, module: str, package: str) -> Any:
    """Import a module of the framework that `adapter` serves; an error names `package`, which installs it."""
    try:
        return import_module(module)
    except ImportError as error:
        remedy = f"pip install {package}"
        raise ImportError(f"{adapter} needs {module}: {error}; install it with: {remedy}", name=module) from error


class DeviceTenants:
    """The tenant of one framework on each device, by device number.

    An allocator that the caller passed serves its own device; other devices use their shared allocator, created on
    first use. Memory from here keeps this object alive, so that `record_stream` finds it.
    """

    _living: WeakSet[DeviceTenants] = WeakSet()
    _lock = fork_safe_lock()

    def __init__(self, name: str, allocator: Allocator | Tenant | None = None) -> None:
        self.name = name
        self._tenants: dict[int, Tenant] = {}
        self.pinned: dict[int, PinnedAllocator] = {}
        if allocator is not None:
            tenant = tenant_of(allocator, name)
            self._tenants[tenant.allocator.device.index] = tenant
        with self._lock:
            self._living.add(self)

    def on(self, device: int) -> Tenant:
        tenant = self._tenants.get(device)
        if tenant is None:
            allocator = current_caching(f"cuda:{device}")
            tenant = self._tenants.setdefault(device, tenant_of(allocator, self.name))
        return tenant

    def pinned_on(self, device: int) -> PinnedAllocator:
        """Return the pinned allocator of a device. Every device can use its memory, but one must allocate it."""
        pinned = self.pinned.get(device)
        if pinned is None:
            pinned = self.pinned.setdefault(device, PinnedAllocator(self.on(device).allocator))
        return pinned

    @classmethod
    def record_stream(cls, name: str, device: int, address: int, stream: Any) -> None:
        """Declare a use of the block at `address`, which may come from any of the framework's allocators.

        Raises AddressError if it came from none.
        """
        with cls._lock:
            of_framework = [tenants for tenants in cls._living if tenants.name == name]
        handle = stream_handle(stream)
        for tenants in of_framework:
            tenant = tenants._tenants.get(device)
            if tenant is not None:
                try:
                    return tenant.record_stream(address, handle)
                except AddressError:
                    continue
        raise AddressError(
            f"invalid device pointer: {address:#x} is not memory that {name} got from Allotment, or it was freed",
            address,
        )


def tenant_of(allocator: Allocator | Tenant, name: str) -> Tenant:
    """Return the tenant `name` of an allocator on a CUDA device; a tenant is returned as it is."""
    if isinstance(allocator, Allocator):
        allocator = allocator.tenant(name)
    elif not isinstance(allocator, Tenant):
        raise TypeError(f"an allocator must be an Allocator or a Tenant of one, not {type(allocator).__name__}")
    device = allocator.allocator.device
    if device.family != "cuda":
        raise RequestError(f"{name} works with CUDA memory; this allocator is on {device.name}")
    allocator.allocator._note_streams(False)  # a framework other than PyTorch destroys streams that nobody refers to
    return allocator


def raw_stream_handle(stream: Any) -> int:
    """Return the handle of a stream of any framework, or of one passed as a number."""
    try:
        handle: int = stream.__cuda_stream__()[1]
        return handle
    except AttributeError:
        pass
    for attribute in ("cuda_stream", "ptr", "handle"):  # PyTorch, CuPy before 14, others
        if hasattr(stream, attribute):
            return int(getattr(stream, attribute))
    try:
        return int(stream)
    except (TypeError, ValueError):
        raise TypeError(
            f"a stream must be a stream of a framework or its handle, not {type(stream).__name__}"
        ) from None


def stream_handle(stream: Any) -> int:
    """Return the number by which an allocator knows a stream; each thread's own default stream has one too."""
    handle = raw_stream_handle(stream)
    if handle == PER_THREAD_STREAM:
        return thread_stream()
    return 0 if handle == LEGACY_STREAM else handle
