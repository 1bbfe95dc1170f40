"""PyTorch's own bytes for a block, which its processes exchange; versions 2 and 3.

    version (1 byte)  kind (1 byte)  payload
                      'c'            64 bytes: the driver's handle of the plain segment's base
                      'e'            process (8 bytes), page size (8), number of pages (8), from version 3 on what kind
                                     the handles are (8: 1 descriptor, 2 fabric), then a handle for each page that the
                                     block touches: 4 bytes, a descriptor of that process, or 64

The offset of the block from the start of the shared memory goes with them. Only 64 bytes are the form before version 1.
Nobody holds the block for the importer: PyTorch counts its receivers itself.
"""

from __future__ import annotations

import ctypes
import errno
import os
import struct
from dataclasses import dataclass

from allotment._sharing.device_calls import DESCRIPTOR, FABRIC
from allotment._sharing.wire import SHORTAGES
from allotment.errors import DeviceError, SharingError, UnsupportedError

_NEWEST = 3
SEGMENT_LENGTH = 64
_HEADER = struct.Struct("<QQQ")
_KIND = struct.Struct("<Q")
_LENGTHS = {DESCRIPTOR: 4, FABRIC: 64}
_PAGES_MOST = 1 << 20
_PIDFD_GETFD = 438  # the same number on every machine


def write_segment(version: int, handle: bytes) -> bytes:
    return bytes([version]) + b"c" + handle


def write_pages(version: int, page: int, handles: list[bytes]) -> bytes:
    header = _HEADER.pack(os.getpid(), page, len(handles)) + (_KIND.pack(DESCRIPTOR) if version >= 3 else b"")
    return bytes([version]) + b"e" + header + b"".join(handles)


@dataclass(frozen=True)
class TorchHandle:
    """`page` is 0 for a plain segment, whose handle is the only one."""

    process: int
    page: int
    way: int
    handles: tuple[bytes, ...]


def read(data: bytes) -> TorchHandle:
    """Return the content of PyTorch's bytes. Raises SharingError unless they are valid and complete."""
    data = bytes(data)
    if len(data) == SEGMENT_LENGTH:
        return TorchHandle(0, 0, 0, (data,))
    if len(data) < 2:
        raise SharingError(f"PyTorch's handle ends after {len(data)} bytes", reason="truncated")
    version, kind = data[0], data[1:2]
    if version > _NEWEST:
        raise SharingError(
            "received sharable handle from a future version of torch that this version does not know how to handle",
            reason="future",
        )
    if version == 0 or kind not in b"ce":
        raise SharingError("these bytes are not a handle of PyTorch's", reason="foreign")
    if kind == b"c":
        if len(data) < 2 + SEGMENT_LENGTH:
            raise SharingError(f"PyTorch's handle ends after {len(data)} bytes", reason="truncated")
        if len(data) > 2 + SEGMENT_LENGTH:
            raise SharingError("PyTorch's handle has bytes after its end", reason="altered")
        return TorchHandle(0, 0, 0, (data[2:],))
    return read_pages(version, data[2:])


def read_pages(version: int, body: bytes) -> TorchHandle:
    opening = _HEADER.size + (_KIND.size if version >= 3 else 0)
    if len(body) < opening:
        raise SharingError(f"PyTorch's handle ends after {len(body) + 2} bytes", reason="truncated")
    process, page, count = _HEADER.unpack_from(body)
    process &= 0xFFFF_FFFF  # a number of 4 bytes, and 4 of padding
    way = _KIND.unpack_from(body, _HEADER.size)[0] & 0xFFFF_FFFF if version >= 3 else DESCRIPTOR
    if version < 3 and len(body) - opening == count * _LENGTHS[FABRIC]:
        way = FABRIC
    is_process = 0 < process < 1 << 31
    if way not in _LENGTHS or not is_process or not 0 < count <= _PAGES_MOST or page == 0 or page % (1 << 12):
        raise SharingError("PyTorch's handle has invalid facts about its pages", reason="altered")
    length = _LENGTHS[way]
    if len(body) < opening + count * length:
        raise SharingError(f"PyTorch's handle ends after {len(body) + 2} bytes", reason="truncated")
    if len(body) > opening + count * length:
        raise SharingError("PyTorch's handle has bytes after its end", reason="altered")
    starts = range(opening, len(body), length)
    return TorchHandle(process, page, way, tuple(body[start : start + length] for start in starts))


def fetch_descriptors(handle: TorchHandle) -> list[int]:
    """Return descriptors of this process for those that the handle names in its own. The caller closes them.

    Needs the right to trace that process, which containers often deny. Raises SharingError, UnsupportedError, and
    OSError if this process is short of descriptors or memory.
    """
    try:
        process = _process_of(handle.process)
    except OSError as error:
        raise _refusal("pidfd_open", "5.3", error, handle.process) from error
    found: list[int] = []
    try:
        for wanted in handle.handles:
            found.append(_descriptor_of(process, int.from_bytes(wanted, "little")))
    except OSError as error:
        for descriptor in found:
            os.close(descriptor)
        raise _refusal("pidfd_getfd", "5.6", error, handle.process) from error
    finally:
        os.close(process)
    return found


def _refusal(call: str, since: str, error: OSError, process: int) -> Exception:
    """Return the exception for a call that the system refused. Each reason has its own remedy."""
    instead = "share with Allocator.share, which does not need it"
    if error.errno == errno.ESRCH:
        return SharingError(
            f"process {process}, which has the block, is gone, or in another PID namespace", reason="owner_gone"
        )
    if error.errno == errno.EBADF:
        return SharingError(f"process {process} no longer keeps the block", reason="expired")
    if error.errno == errno.ENOSYS:
        return UnsupportedError(
            f"this system has no {call}, by which PyTorch's processes fetch each other's descriptors: it needs Linux "
            f"{since}, and a sandbox may hide it; {instead}",
            operation=call,
        )
    if error.errno == errno.EPERM:
        return UnsupportedError(
            f"this process may not fetch descriptors of process {process} ({call}: {error.strerror}); allow ptrace, or "
            f"{instead}",
            operation=call,
        )
    if error.errno in SHORTAGES:
        return OSError(error.errno, f"{error.strerror}, while fetching descriptors of process {process} ({call})")
    return DeviceError(f"descriptors of process {process} cannot be fetched: {call}: {error.strerror}", operation=call)


def _process_of(number: int) -> int:
    if not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(number)


def _descriptor_of(process: int, descriptor: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    found: int = call(ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(process), ctypes.c_int(descriptor), ctypes.c_uint(0))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.set_inheritable(found, False)
    return found
