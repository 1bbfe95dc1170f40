"""Provides buffers of cuda.core from an Allotment allocator.

    from cuda.core import Device
    import allotment.cuda_core

    device = Device()
    device.set_current()
    stream = device.create_stream()
    resource = allotment.cuda_core.MemoryResource()     # the shared allocator of the current device
    buffer = resource.allocate(1 << 20, stream=stream)
    device.memory_resource = resource                   # for `device.allocate` too

Memory is counted for the tenant "cuda.core".
"""

from __future__ import annotations

from typing import Any

from allotment._adapters.frameworks import import_framework, raw_stream_handle, stream_handle, tenant_of
from allotment._allocators.caching.allocator import Allocator
from allotment._allocators.caching.tenants import Tenant
from allotment._allocators.current import current_caching
from allotment._allocators.opened import open_shared as open_block
from allotment._sharing.handle import SharedHandle
from allotment.errors import UnsupportedError

__all__ = ["MemoryResource", "open_shared", "record_stream"]

_core = import_framework("allotment.cuda_core", "cuda.core", "cuda-core")

_NAME = "cuda.core"
_Base: Any = _core.MemoryResource
_Stream: Any = _core.Stream
_STREAMS = (_core.Stream, _core.graph.GraphBuilder)
_buffer_of: Any = _core.Buffer.from_handle
_LEAST_HANDLE = 4096  # handles are addresses, except for small numbers that name default streams


class MemoryResource(_Base):  # type: ignore[misc]
    """Device memory in stream order.

    `allocator` is an Allocator, or a Tenant of one; None is the shared allocator of the current device.
    Raises RequestError for an allocator that is not on a CUDA device. Safe to use from several threads.
    """

    def __init__(self, allocator: Allocator | Tenant | None = None) -> None:
        if allocator is None:
            allocator = current_caching(f"cuda:{_core.Device().device_id}")
        self._tenant = tenant_of(allocator, _NAME)
        self._malloc, self._free_on = self._tenant.malloc, self._tenant._free_on

    @property
    def allocator(self) -> Allocator:
        """Allocator that the memory comes from."""
        return self._tenant.allocator

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        """Allocate a buffer for work on `stream`, by default the default stream; that stream also orders its free.

        Raises SizeError, OutOfMemoryError (a MemoryError).
        """
        if stream.__class__ is _Stream:
            handle = stream.__cuda_stream__()[1]
            if handle < _LEAST_HANDLE:
                handle = stream_handle(handle)
        else:
            if stream is None:
                stream = _core.LEGACY_DEFAULT_STREAM
            elif not isinstance(stream, _STREAMS):
                stream = _Stream.from_handle(raw_stream_handle(stream))
            handle = stream_handle(stream)
        return _buffer_of(self._malloc(size, handle), size, self, stream=stream)

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        """Free memory in the order of `stream`; the allocation's own stream is always respected too."""
        if stream is None:
            self._tenant._free_working_on(int(ptr), 0)
        else:
            handle = stream.__cuda_stream__()[1] if stream.__class__ is _Stream else stream_handle(stream)
            self._free_on(int(ptr), handle if handle >= _LEAST_HANDLE else stream_handle(handle))

    def record_stream(self, buffer: Any, stream: Any) -> None:
        """Record that work on `stream` uses a buffer, so that its memory is reused only when that work is done."""
        self._tenant.record_stream(int(buffer.handle), stream_handle(stream))

    def share(self, buffer: Any, *, hold: float = 60.0) -> SharedHandle:
        """Return a handle by which another process opens a buffer of this resource: `allotment.cuda_core.open_shared`.

        Its memory is not reused while another process has it open, nor for `hold` seconds in which none opens it.
        Raises AddressError for a buffer from elsewhere, UnsupportedError, DeviceError.
        """
        return self._tenant.allocator.share(int(buffer.handle), hold=hold)

    @property
    def is_device_accessible(self) -> bool:
        """True: kernels can use the memory."""
        return True

    @property
    def is_host_accessible(self) -> bool:
        """False: this process cannot read the memory directly."""
        return False

    @property
    def device_id(self) -> int:
        """Index of the device that the memory is on."""
        return self._tenant.allocator.device.index


class _OpenedResource(_Base):  # type: ignore[misc]
    """The resource that one buffer of another process returns to."""

    is_device_accessible = True
    is_host_accessible = False

    def __init__(self, opened: Any) -> None:
        self._opened = opened

    def allocate(self, size: int, *, stream: Any = None) -> Any:
        raise UnsupportedError("an opened buffer of another process cannot allocate; use a MemoryResource")

    def deallocate(self, ptr: Any, size: int, *, stream: Any = None) -> None:
        if stream is not None:
            self._opened.record_stream(stream_handle(stream))
        self._opened.close()

    @property
    def device_id(self) -> int:
        return int(self._opened.allocator.device.index)


def open_shared(handle: SharedHandle, *, stream: Any = None) -> Any:
    """Open a buffer that another process shared; work on `stream`, by default the default one, waits for the owner's.

    Raises SharingError, whose `reason` says why it cannot be opened, and DeviceError.
    """
    if stream is None:
        stream = _core.LEGACY_DEFAULT_STREAM
    elif not isinstance(stream, _STREAMS):
        stream = _core.Stream.from_handle(raw_stream_handle(stream))
    opened = open_block(handle, stream=stream_handle(stream))
    return _core.Buffer.from_handle(opened.address, len(opened), _OpenedResource(opened), stream=stream)


def record_stream(buffer: Any, stream: Any) -> None:
    """Record that work on `stream` uses a buffer, so that its memory is reused only when that work is done.

    `stream` is a stream of any framework, or its handle. Raises TypeError for a buffer of another resource.
    """
    resource = buffer.memory_resource
    if not isinstance(resource, MemoryResource):
        raise TypeError(f"the buffer's memory must come from allotment.cuda_core, not from {type(resource).__name__}")
    resource.record_stream(buffer, stream)
