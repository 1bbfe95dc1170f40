"""Messages between who has a block and who opens it, over a Unix socket that has no name in any folder.

    open    block, generation, allocator, whether it is open here already  ->  what it is, its order, first pieces
    more    block, generation, allocator, from which piece on              ->  pieces
    close   block, generation, allocator                                      (no reply)

A message is a packet (SOCK_SEQPACKET): it arrives whole or not at all. Descriptors travel beside it (SCM_RIGHTS), no
more at a time than the system takes. Everything that arrives is read as from a stranger.
"""

from __future__ import annotations

import array
import enum
import os
import socket
import struct
import sys
from dataclasses import dataclass, field

from allotment._sharing.device_calls import DESCRIPTOR
from allotment._sharing.ordering import OrderKind
from allotment.errors import SharingError, UnsupportedError

PIECES_AT_ONCE = 100
MESSAGE_MOST = 64 * 1024
_DESCRIPTORS_MOST = PIECES_AT_ONCE + 1
_CREDENTIALS = struct.Struct("3i")
_REQUEST = struct.Struct("<BQQIQ")
_REPLY = struct.Struct("<BBQQQQBBHH")
_PIECE = struct.Struct("<BQB")


class Ask(enum.IntEnum):
    OPEN = 1
    OPEN_AGAIN = 2
    MORE = 3
    CLOSE = 4


class Answer(enum.IntEnum):
    OK = 0
    EXPIRED = 1
    OTHER_USER = 2
    FAILED = 3


@dataclass(frozen=True)
class Request:
    ask: Ask
    block: int
    generation: int
    allocator: int
    first: int = 0

    @property
    def key(self) -> tuple[int, int, int]:
        return self.allocator, self.block, self.generation

    def pack(self) -> bytes:
        return _REQUEST.pack(self.ask, self.block, self.generation, self.allocator, self.first)

    @classmethod
    def read(cls, data: bytes) -> Request:
        """Raises ValueError for what is not a request."""
        try:
            ask, block, generation, allocator, first = _REQUEST.unpack(data)
        except struct.error as error:
            raise ValueError(str(error)) from None
        return cls(Ask(ask), block, generation, allocator, first)


@dataclass(frozen=True)
class Piece:
    """A segment or a chunk: how it travels, its size, and its handle unless that is a descriptor."""

    way: int
    size: int
    handle: bytes = b""


@dataclass
class Reply:
    """`base`, `count` and `plain` tell what is mapped: with the same three, it is the same memory."""

    answer: Answer
    plain: bool = False
    size: int = 0
    offset: int = 0
    base: int = 0
    count: int = 0
    order: OrderKind = OrderKind.NOTHING
    events: list[bytes] = field(default_factory=list)
    pieces: list[Piece] = field(default_factory=list)
    text: str = ""
    descriptors: list[int] = field(default_factory=list)
    """Of the pieces that travel so, in order, and then of the pipe."""

    def pack(self) -> bytes:
        text = self.text.encode()[:1000]
        parts = [
            _REPLY.pack(
                self.answer, self.plain, self.size, self.offset, self.base, self.count, self.order, len(self.events),
                len(self.pieces), len(text),
            ),
            text,
        ]  # fmt: skip
        parts += [bytes([len(event)]) + event for event in self.events]
        parts += [_PIECE.pack(piece.way, piece.size, len(piece.handle)) + piece.handle for piece in self.pieces]
        return b"".join(parts)

    @classmethod
    def read(cls, data: bytes, descriptors: list[int]) -> Reply:
        """Raises ValueError for what is not a reply."""
        try:
            answer, plain, size, offset, base, count, order, events, pieces, text = _REPLY.unpack_from(data)
            reply = cls(Answer(answer), bool(plain), size, offset, base, count, OrderKind(order))
            at = _REPLY.size + text
            reply.text = data[_REPLY.size : at].decode("utf-8", "replace")
            for _ in range(events):
                reply.events.append(data[at + 1 : at + 1 + data[at]])
                at += 1 + data[at]
            for _ in range(pieces):
                way, piece_size, length = _PIECE.unpack_from(data, at)
                at += _PIECE.size
                reply.pieces.append(Piece(way, piece_size, data[at : at + length]))
                at += length
        except (struct.error, IndexError) as error:
            raise ValueError(str(error)) from None
        wanted = sum(piece.way == DESCRIPTOR for piece in reply.pieces) + (reply.order is OrderKind.PIPE)
        if at != len(data) or wanted != len(descriptors):
            raise ValueError(f"{len(data)} bytes with {len(descriptors)} descriptors, not {at} with {wanted}")
        reply.descriptors = descriptors
        return reply


# Sockets.


def require_sockets() -> None:
    if sys.platform != "linux":
        raise UnsupportedError("blocks are shared between processes on Linux alone", operation="share")


def address_of(process: int, token: bytes) -> bytes:
    """In the system's own space of names, which no folder shows and which ends with the process."""
    return b"\0allotment-%d-%s" % (process, token.hex().encode())


def packet_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """(process, user) at the other end, as the system says."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


def watch_process(process: int) -> int | None:
    """A descriptor that can be read when a process is gone; None if the system has none. Raises ProcessLookupError."""
    if process <= 0 or not hasattr(os, "pidfd_open"):
        return None
    try:
        return os.pidfd_open(process)
    except ProcessLookupError:
        raise
    except OSError:
        return None


def send(connection: socket.socket, data: bytes, descriptors: list[int] | None = None) -> None:
    """Without waiting. Raises OSError."""
    beside = []
    if descriptors:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([data], beside, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """A message and its descriptors, without waiting; b"" is the end. Raises OSError.

    What was cut off by the system is not used: its descriptors are closed, and it counts as altered.
    """
    room = socket.CMSG_SPACE(_DESCRIPTORS_MOST * struct.calcsize("i"))
    wanted = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    data, beside, flags, _ = connection.recvmsg(MESSAGE_MOST, room, wanted)
    descriptors = array.array("i")
    for level, kind, content in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        close_all(list(descriptors))
        raise SharingError(
            "a message of the block's owner was cut off by the system; is the limit on open descriptors reached "
            "(ulimit -n)?",
            reason="truncated",
        )
    return data, list(descriptors)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
