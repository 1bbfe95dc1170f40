"""PyTorch's own bytes for a block, which its processes exchange; versions 2 and 3.

    version (1 byte)  kind (1 byte)  payload
                      'c'            64 bytes: the driver's handle of the plain segment's base
                      'e'            process (8 bytes), page size (8), number of pages (8), from version 3 on what kind
                                     the handles are (8: 1 descriptor, 2 fabric), then a handle for each page that the
                                     block touches: 4 bytes, a descriptor of that process, or 64

With them goes the offset of the block from the start of what is shared. 64 bytes alone are the form before version 1.
Nobody holds the block for who opens it: PyTorch counts its receivers by itself.
"""

from __future__ import annotations

import ctypes
import os
import struct
from dataclasses import dataclass

from allotment._sharing.device_calls import DESCRIPTOR, FABRIC
from allotment.errors import SharingError, UnsupportedError

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
    """What PyTorch's bytes say. Raises SharingError unless they are that, all of it."""
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
            raise SharingError("PyTorch's handle has bytes behind its end", reason="altered")
        return TorchHandle(0, 0, 0, (data[2:],))
    return read_pages(version, data[2:])


def read_pages(version: int, body: bytes) -> TorchHandle:
    opening = _HEADER.size + (_KIND.size if version >= 3 else 0)
    if len(body) < opening:
        raise SharingError(f"PyTorch's handle ends after {len(body) + 2} bytes", reason="truncated")
    process, page, count = _HEADER.unpack_from(body)
    process &= 0xFFFF_FFFF  # a number of 4 bytes, and 4 to fill up
    way = _KIND.unpack_from(body, _HEADER.size)[0] & 0xFFFF_FFFF if version >= 3 else DESCRIPTOR
    if version < 3 and len(body) - opening == count * _LENGTHS[FABRIC]:
        way = FABRIC
    if way not in _LENGTHS or not 0 < count <= _PAGES_MOST or page == 0 or page % (1 << 12):
        raise SharingError("PyTorch's handle says nonsense about its pages", reason="altered")
    length = _LENGTHS[way]
    if len(body) < opening + count * length:
        raise SharingError(f"PyTorch's handle ends after {len(body) + 2} bytes", reason="truncated")
    if len(body) > opening + count * length:
        raise SharingError("PyTorch's handle has bytes behind its end", reason="altered")
    starts = range(opening, len(body), length)
    return TorchHandle(process, page, way, tuple(body[start : start + length] for start in starts))


def fetch_descriptors(handle: TorchHandle) -> list[int]:
    """Descriptors of this process for what the handle's are in its own. The caller closes them.

    Needs the right to trace that process, which containers often withhold. Raises SharingError, UnsupportedError.
    """
    try:
        process = os.pidfd_open(handle.process)
    except (OSError, AttributeError) as error:
        raise SharingError(f"process {handle.process}, which has the block, is gone", reason="owner_gone") from error
    found: list[int] = []
    try:
        for wanted in handle.handles:
            found.append(_descriptor_of(process, int.from_bytes(wanted, "little")))
    except OSError as error:
        for descriptor in found:
            os.close(descriptor)
        if error.errno in (1, 38):  # EPERM, ENOSYS
            raise UnsupportedError(
                "the descriptors of another process cannot be had here (pidfd_getfd: "
                f"{error.strerror}); allow ptrace, or share with Allocator.share, which needs no such right",
                operation="pidfd_getfd",
            ) from error
        raise SharingError(f"process {handle.process} has let go of the block", reason="expired") from error
    finally:
        os.close(process)
    return found


def _descriptor_of(process: int, descriptor: int) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    found: int = call(ctypes.c_long(_PIDFD_GETFD), ctypes.c_int(process), ctypes.c_int(descriptor), ctypes.c_uint(0))
    if found < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    os.set_inheritable(found, False)
    return found
