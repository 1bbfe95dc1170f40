"""Messages between a block's owner and an importer, over a Unix socket without a name in the file system.

    open     block, generation, allocator, number of the send, whether it is open here already
                                                                   ->  what it is, its order, first pieces
    more     block, generation, allocator, from which piece on     ->  pieces
    send on  block, generation, allocator, for how long            ->  number of the send
    close    block, generation, allocator                              (no reply)

A message is a packet (SOCK_SEQPACKET): it arrives whole or not at all. Descriptors are sent with it (SCM_RIGHTS), no
more at a time than the system allows. Everything that arrives is untrusted.
"""

from __future__ import annotations

import array
import enum
import errno
import math
import os
import socket
import struct
import sys
from dataclasses import dataclass, field

from allotment._sharing.device_calls import DESCRIPTOR
from allotment._sharing.ordering import OrderKind
from allotment._texts import printable
from allotment.errors import SharingError, UnsupportedError

PIECES_AT_ONCE = 100
MESSAGE_MOST = 64 * 1024
_DESCRIPTORS_MOST = PIECES_AT_ONCE + 1
_CREDENTIALS = struct.Struct("3i")
_DESCRIPTOR = struct.Struct("i")
_SO_PEERPIDFD = 77  # Linux 6.5; Python has no name for it
SHORTAGES = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOMEM, errno.ENOBUFS})
"""System errors that say nothing about the other process."""
_REQUEST = struct.Struct("<BQQIQ")
_REPLY = struct.Struct("<BBQQQQBBHH")
_PIECE = struct.Struct("<BQB")
_FOR_EVER = 2**64 - 1


class Ask(enum.IntEnum):
    OPEN = 1
    OPEN_AGAIN = 2
    MORE = 3
    CLOSE = 4
    SEND_ON = 5


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
    argument: int = 0
    """OPEN, OPEN_AGAIN: the number of the send, 0 for a handle. MORE: the first piece. SEND_ON: milliseconds."""

    @property
    def key(self) -> tuple[int, int, int]:
        return self.allocator, self.block, self.generation

    @property
    def seconds(self) -> float:
        return math.inf if self.argument == _FOR_EVER else self.argument / 1000

    def pack(self) -> bytes:
        return _REQUEST.pack(self.ask, self.block, self.generation, self.allocator, self.argument)

    @classmethod
    def read(cls, data: bytes) -> Request:
        """Raises ValueError for an invalid request."""
        try:
            ask, block, generation, allocator, argument = _REQUEST.unpack(data)
        except struct.error as error:
            raise ValueError(str(error)) from None
        return cls(Ask(ask), block, generation, allocator, argument)


def milliseconds(seconds: float) -> int:
    """Return the time as a request states it."""
    return min(math.ceil(1000 * seconds), _FOR_EVER) if math.isfinite(seconds) else _FOR_EVER


@dataclass(frozen=True)
class Piece:
    """A segment or a chunk: how it is shared, its size, and its handle unless that is a descriptor."""

    way: int
    size: int
    handle: bytes = b""


def way_of(piece: Piece, count: int, plain: bool) -> str:
    """Describe in words how so many pieces are shared."""
    by_descriptor = piece.way == DESCRIPTOR
    if plain:
        return "a descriptor" if by_descriptor else "a handle of the device"
    return f"{'descriptors' if by_descriptor else 'fabric handles'} of {count} chunks"


@dataclass
class Reply:
    """`base`, `count` and `plain` identify what is mapped: if all three are equal, it is the same memory.

    For SEND_ON, `count` is the number of the send.
    """

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
    """Of the pieces shared by descriptor, in order, then of the pipe."""

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
        """Raises ValueError for an invalid reply."""
        try:
            answer, plain, size, offset, base, count, order, events, pieces, text = _REPLY.unpack_from(data)
            reply = cls(Answer(answer), bool(plain), size, offset, base, count, OrderKind(order))
            at = _REPLY.size + text
            reply.text = printable(data[_REPLY.size : at].decode("utf-8", "replace"))
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
        raise UnsupportedError("sharing blocks between processes needs Linux", operation="share")


def address_of(process: int, token: bytes) -> bytes:
    """Return an abstract socket name, which no folder shows and which ends with the process."""
    return b"\0allotment-%d-%s" % (process, token.hex().encode())


def packet_socket() -> socket.socket:
    return socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)


def peer_of(connection: socket.socket) -> tuple[int, int]:
    """Return (process, user) at the other end, according to the system."""
    data = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    process, user, _ = _CREDENTIALS.unpack(data)
    return process, user


def watch_peer(connection: socket.socket) -> int | None:
    """Return a descriptor that becomes readable when the process at the other end is gone; None if unsupported.

    From Linux 6.5 on this works across PID namespaces, where the process has another number here or none. Raises
    ProcessLookupError if it is gone, OSError if this process is short of descriptors or memory.
    """
    for watch in (_watch_by_socket, _watch_by_number):
        try:
            return watch(connection)
        except ProcessLookupError:
            raise
        except OSError as error:
            if error.errno in SHORTAGES:
                raise
    return None


def _watch_by_socket(connection: socket.socket) -> int:
    found: int = _DESCRIPTOR.unpack(connection.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD, _DESCRIPTOR.size))[0]
    return found


def _watch_by_number(connection: socket.socket) -> int:
    process, _ = peer_of(connection)
    if process <= 0 or not hasattr(os, "pidfd_open"):
        raise OSError(errno.ENOSYS, os.strerror(errno.ENOSYS))
    return os.pidfd_open(process)


def send(connection: socket.socket, data: bytes, descriptors: list[int] | None = None) -> None:
    """Send without waiting. Raises OSError."""
    beside = []
    if descriptors:
        beside = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
    connection.sendmsg([data], beside, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL)


def receive(connection: socket.socket) -> tuple[bytes, list[int]]:
    """Receive a message and its descriptors, without waiting; b"" is the end. Raises OSError.

    A message that the system truncated is not used: its descriptors are closed, and it counts as altered.
    """
    room = socket.CMSG_SPACE(_DESCRIPTORS_MOST * _DESCRIPTOR.size)
    wanted = socket.MSG_DONTWAIT | socket.MSG_CMSG_CLOEXEC
    try:
        data, beside, flags, _ = connection.recvmsg(MESSAGE_MOST, room, wanted)
    except ConnectionResetError:
        # The other side hung up with our message unread. The system reports that first, and then its last message.
        data, beside, flags, _ = connection.recvmsg(MESSAGE_MOST, room, wanted)
    descriptors = array.array("i")
    for level, kind, content in beside:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            descriptors.frombytes(content[: len(content) - len(content) % descriptors.itemsize])
    if flags & (socket.MSG_CTRUNC | socket.MSG_TRUNC):
        close_all(list(descriptors))
        raise SharingError(
            "the system truncated a message of the block's owner; is the limit on open descriptors reached "
            "(ulimit -n)?",
            reason="truncated",
        )
    return data, list(descriptors)


def close_all(descriptors: list[int]) -> None:
    for descriptor in descriptors:
        os.close(descriptor)
