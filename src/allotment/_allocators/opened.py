"""Opens other processes' blocks as buffers."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from allotment._allocators.buffer import Buffer
from allotment._devices import open_device
from allotment._devices.streams import Stream
from allotment._sharing import device_calls, importer, torch_form
from allotment._sharing.handle import SharedHandle
from allotment._sharing.uninterrupted import uninterrupted
from allotment._sharing.wire import close_all
from allotment.errors import SharingError, SizeError, UnsupportedError

if TYPE_CHECKING:
    from allotment._core.contract.table import Device

__all__ = ["open_shared", "open_shared_torch"]


def open_shared(handle: SharedHandle, *, stream: Stream | int = 0) -> Buffer:
    """Return the block that another process has shared as a buffer of this process: the same memory, no copy.

    It is closed with the buffer, or with its last reference, or with the process. Then its owner may reuse it, once the
    streams that used it here are done (`stream`, and those passed to `Buffer.record_stream`). `stream` waits for the
    work of the owner's streams at the time of sharing; on host memory without a `Stream`, the call itself waits. A
    block opened twice has one address. A child of fork does not have it.

    Raises SharingError, whose `reason` says why it cannot be opened; DeviceError, also if the owner is short of
    descriptors; OSError if this process is; UnsupportedError on systems other than Linux. Safe to call from several
    threads.
    """
    return _open(handle, 0, stream)


def open_shared_torch(handle: bytes, offset: int, size: int, *, device: str | Device = "cuda") -> Buffer:
    """Return `size` bytes at `offset` in what PyTorch's handle opens: a handle from `share_torch` or from PyTorch.

    `device` is where the memory is. The same handle opened twice is one mapping. Its sender keeps the memory alive:
    these handles hold nothing. Raises SharingError for bytes that are not such a handle, or whose process is gone;
    UnsupportedError where the system does not pass descriptors between processes; OSError if this process is short of
    descriptors; SizeError for a place outside of it.
    """
    found = open_device(device, shareable=True) if isinstance(device, str) else device
    opened: Any
    opened, address = _open_torch(handle, offset, size, found)
    return Buffer(opened, address, size, 0)


def shared_form(buffer: Buffer, hold: float) -> tuple[Any, ...]:
    """Return the pickled form of a buffer that is sent as the same memory. Raises what `Allocator.share` raises."""
    sharing = getattr(buffer.allocator, "sharing", buffer.allocator)  # a block that was opened here has its own handle
    send = getattr(sharing, "_send_block", None)
    if send is None or len(buffer) == 0:
        raise UnsupportedError(f"{buffer!r} cannot be shared with another process", operation="share")
    handle, number = send(buffer, hold)
    return _received, (handle, number, buffer.address - buffer.block, len(buffer))


def _received(handle: SharedHandle, number: int, start: int, size: int) -> Buffer:
    """Return the part of a block that was sent. The owner holds it for this one receiver until now."""
    buffer = _open(handle, number, 0)
    return buffer if (start, size) == (0, len(buffer)) else buffer[start : start + size]


def _open(handle: SharedHandle, number: int, stream: Stream | int) -> Buffer:
    device = stream.device if isinstance(stream, Stream) else None
    on_stream = stream.handle if isinstance(stream, Stream) else int(stream)
    opened: Any
    opened, address, size = importer.open_block(handle, number, on_stream, device)
    return Buffer(opened, address, size, stream)  # `opened` closes itself if this is interrupted


def _open_torch(data: bytes, offset: int, size: int, device: Device) -> tuple[importer.Opened, int]:
    handle = torch_form.read(data)
    whole = handle.page * len(handle.handles)
    if offset < 0 or size < 0 or (whole and offset + size > whole):
        raise SizeError(f"{size} bytes from {offset} on are outside the memory that the handle opens", size)
    if handle.process == os.getpid():
        raise SharingError("the handle belongs to this process, which need not open its own memory", reason="foreign")

    def fetch_and_map() -> tuple[importer.Opened, int]:
        descriptors = torch_form.fetch_descriptors(handle) if handle.way == device_calls.DESCRIPTOR else []
        try:
            return importer.open_foreign(bytes(data), handle, descriptors, offset, size, device)
        finally:
            close_all(descriptors)

    return uninterrupted(fetch_and_map)
