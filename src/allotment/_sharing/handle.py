"""A block's name for other processes: bytes that identify it, checked before they are used.

    magic     4   b"ALSH"
    version   1   1
    family    1   host, cuda, simulated, other
    length    2   of the whole handle
    checksum  8   of everything below
    user      4   of the owner: the system's user id
    process   4   of the owner
    boot     16   of the machine that it runs on
    token    16   drawn at random by the owner: no other process has it
    identity 16   of the device
    allocator 4   the owner's number for it
    block     8   its address there
    generation 8  distinguishes all blocks that were ever shared
    size      8   in bytes
    name     ...  of the device, as the owner calls it

All numbers are little-endian. The handle holds no secret: the owner's socket asks the system who is calling.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass
from typing import Any

from allotment._sharing.identity import KINDS
from allotment._texts import printable
from allotment.errors import SharingError

__all__ = ["SharedHandle"]

_MAGIC = b"ALSH"
_VERSION = 1
_OPENING = struct.Struct("<4sBBH8s")
_BODY = struct.Struct("<II16s16s16sIQQQ")
_NAME_MOST = 200


@dataclass(frozen=True, slots=True)
class Facts:
    """The content of a handle."""

    family: str
    user: int
    process: int
    boot: bytes
    token: bytes
    identity: bytes
    allocator: int
    block: int
    generation: int
    size: int
    name: str


class SharedHandle:
    """SharedHandle.from_bytes(data)

    A block of another process, by name: `Allocator.share` makes one, `allotment.open_shared` opens it.

    Equal and hashable: handles of one block are equal. It can be pickled, sent in any way, and kept. It holds no memory
    itself; its owner keeps the block for the time given by `hold`. Immutable, so threads may share it.
    """

    __slots__ = ("_bytes", "_facts")

    def __init__(self, data: bytes) -> None:
        self._bytes = bytes(data)
        self._facts = _read(self._bytes)

    @classmethod
    def from_bytes(cls, data: bytes) -> SharedHandle:
        """Return the handle that `to_bytes` wrote. Raises SharingError, whose `reason` says what is wrong."""
        return cls(data)

    def to_bytes(self) -> bytes:
        """Return the handle as bytes, the same each time for one block."""
        return self._bytes

    @property
    def size(self) -> int:
        """Number of bytes of the block."""
        return self._facts.size

    @property
    def device(self) -> str:
        """Device that the block is on, as its owner calls it."""
        return self._facts.name

    @property
    def owner(self) -> int:
        """Process id of the block's owner."""
        return self._facts.process

    def close(self) -> None:
        """In the block's owner, end the time in which processes can open this handle.

        Processes that have the block open keep it, and buffers that are on their way through a queue still arrive. In
        other processes it does nothing: there a handle is only a name.
        """
        from allotment._sharing import owner

        owner.end_hold(self._facts)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, SharedHandle) and self._bytes == other._bytes

    def __hash__(self) -> int:
        return hash(self._bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return SharedHandle.from_bytes, (self._bytes,)

    def __repr__(self) -> str:
        facts = self._facts
        return (
            f"<SharedHandle of {facts.size} bytes on {facts.name}, block {facts.block:#x} of process {facts.process}>"
        )


def make_handle(facts: Facts) -> SharedHandle:
    body = _BODY.pack(
        facts.user, facts.process, facts.boot, facts.token, facts.identity, facts.allocator, facts.block,
        facts.generation, facts.size,
    ) + facts.name.encode()[:_NAME_MOST]  # fmt: skip
    length = _OPENING.size + len(body)
    return SharedHandle(_opening(KINDS.index(facts.family), length, body) + body)


def facts_of(handle: SharedHandle) -> Facts:
    if not isinstance(handle, SharedHandle):
        raise TypeError(f"a shared block is opened by its SharedHandle, not by {type(handle).__name__}")
    return handle._facts


def _opening(family: int, length: int, body: bytes) -> bytes:
    checksum = hashlib.blake2b(bytes([_VERSION, family]) + body, digest_size=8).digest()
    return _OPENING.pack(_MAGIC, _VERSION, family, length, checksum)


def _read(data: bytes) -> Facts:
    """Return the content. Raises SharingError unless the bytes are a complete and unchanged handle."""
    if data[: len(_MAGIC)] != _MAGIC[: len(data)] or not data:
        raise SharingError("these bytes are not a handle of Allotment's", reason="foreign")
    if len(data) > len(_MAGIC) and data[len(_MAGIC)] > _VERSION:
        raise SharingError(
            f"the handle has version {data[len(_MAGIC)]}, and this Allotment knows handles up to {_VERSION}: "
            "it comes from a newer one",
            reason="future",
        )
    if len(data) < _OPENING.size + _BODY.size:
        raise SharingError(f"the handle ends after {len(data)} bytes", reason="truncated")
    _, _, family, length, checksum = _OPENING.unpack_from(data)
    if len(data) < length:
        raise SharingError(f"the handle ends after {len(data)} of {length} bytes", reason="truncated")
    body = data[_OPENING.size :]
    if _opening(family, length, body) != data[: _OPENING.size] or len(data) != length or family >= len(KINDS):
        raise SharingError(f"the handle was changed on its way: its checksum is not {checksum.hex()}", reason="altered")
    user, process, boot, token, identity, allocator, block, generation, size = _BODY.unpack_from(body)
    name = printable(body[_BODY.size :].decode("utf-8", "replace"))
    return Facts(KINDS[family], user, process, boot, token, identity, allocator, block, generation, size, name)
