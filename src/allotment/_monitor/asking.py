"""Finds the processes of this user that announce themselves, and asks them.

A process that does not answer in time, ends meanwhile, or belongs to another user is not an error: it is omitted, or
shown as not answering.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from allotment._monitor.answering import NAME
from allotment._monitor.figures import Line, Report, read_lines, read_report
from allotment._sharing import wire
from allotment._sharing.identity import user_id
from allotment._texts import printable
from allotment.errors import FormatError, RequestError, UnsupportedError

SOCKETS = Path("/proc/net/unix")
REPLY_MOST = 64 * 1024 * 1024
FIGURES_SECONDS = 1.0
SNAPSHOT_SECONDS = 120.0


@dataclass(frozen=True)
class Silent:
    """A process that announces itself and did not answer in time: it is stopped, or holds the interpreter lock."""

    pid: int


class Conversation:
    """One question to one process; closed after the answer."""

    def __init__(self, address: bytes, question: dict[str, Any]) -> None:
        """Raises OSError if the process is gone or takes no question now, PermissionError for another user's."""
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC | socket.SOCK_NONBLOCK)
        self.pid = int(address.split(b"-")[3])
        self.descriptors: list[int] = []
        try:
            self.socket.connect(address)
            process, user = wire.peer_of(self.socket)
            if user != user_id():
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            self.pid = process or self.pid  # 0: a process of another PID namespace
            self.socket.sendall(json.dumps(question).encode())
        except OSError:
            self.socket.close()
            raise

    def answer(self, deadline: float) -> Any:
        """Return the answer; the caller owns its `descriptors`. Raises TimeoutError, OSError, FormatError, and
        RequestError if the process refuses.
        """
        try:
            return self._read(deadline)
        except BaseException:
            wire.close_all(self.descriptors)
            raise

    def _read(self, deadline: float) -> Any:
        parts, size = [], 0
        with self.socket:
            while True:
                self.socket.settimeout(max(deadline - time.monotonic(), 0.001))
                part, descriptors, _, _ = socket.recv_fds(self.socket, 1 << 16, 1)
                self.descriptors += descriptors
                if not part:
                    break
                parts.append(part)
                size += len(part)
                if size > REPLY_MOST:
                    raise FormatError(f"process {self.pid} sends more than {REPLY_MOST:,} bytes")
        if not parts:
            raise ConnectionResetError(errno.ECONNRESET, f"process {self.pid} has ended")
        try:
            found = json.loads(b"".join(parts))
        except (ValueError, RecursionError):
            raise FormatError(f"process {self.pid} sent something that is not JSON") from None
        if isinstance(found, dict) and isinstance(found.get("error"), str):
            raise RequestError(f"process {self.pid}: {printable(found['error'])}")
        return found


def addresses() -> list[bytes]:
    """Return the sockets of this user's processes. Raises UnsupportedError where the system cannot list sockets."""
    if sys.platform != "linux":
        raise UnsupportedError("processes can be watched on Linux only", operation="top")
    beginning = b"@" + (NAME % user_id())[1:]
    try:
        lines = SOCKETS.read_bytes().splitlines()
    except OSError as error:
        raise UnsupportedError(f"the system does not list its sockets: {error}", operation="top") from None
    found = {words[-1] for line in lines if (words := line.split()) and words[-1].startswith(beginning)}
    return sorted(b"\0" + each[1:] for each in found if each.split(b"-")[3:4] and each.split(b"-")[3].isdigit())


def ask_all(seconds: float = FIGURES_SECONDS) -> list[Report | Silent]:
    """Return the answers of this user's processes, in order of their number; asks all before it reads the first."""
    found: list[Report | Silent] = []
    asked = []
    for address in addresses():
        try:
            asked.append(Conversation(address, {"ask": "figures"}))
        except BlockingIOError:
            found.append(Silent(int(address.split(b"-")[3])))
        except OSError:
            continue  # it has ended since, or belongs to another user
    deadline = time.monotonic() + seconds
    for conversation in asked:
        try:
            report = read_report(conversation.answer(deadline))
            found.append(Report(conversation.pid, report.command, report.seconds, report.allocators))
        except TimeoutError:
            found.append(Silent(conversation.pid))
        except (OSError, FormatError, RequestError):
            continue
    return sorted(found, key=lambda each: each.pid)


def _ask(pid: int, question: dict[str, Any], seconds: float) -> tuple[Any, list[int]]:
    for address in addresses():
        try:
            conversation = Conversation(address, question)
        except OSError:
            continue
        if conversation.pid != pid:
            conversation.socket.close()
            continue
        try:
            return conversation.answer(time.monotonic() + seconds), conversation.descriptors
        except TimeoutError:
            raise RequestError(f"process {pid} did not answer within {seconds:.0f} s; is it stopped?") from None
        except OSError:
            raise RequestError(f"process {pid} ended while it was asked") from None
    raise RequestError(unknown(pid))


def unknown(pid: int) -> str:
    """Return why a process cannot be asked, and what to do."""
    return (
        f"process {pid} of this user does not announce itself: start it with ALLOTMENT_MONITOR=1, or with the settings"
        " key monitor:True"
    )


def ask_lines(pid: int) -> list[Line]:
    """Return the lines of code that hold most memory of a process. Raises RequestError, FormatError."""
    found, descriptors = _ask(pid, {"ask": "lines"}, 10 * FIGURES_SECONDS)
    wire.close_all(descriptors)
    return read_lines(found.get("lines") if isinstance(found, dict) else None)


def ask_snapshot(pid: int, device: str | None = None) -> tuple[int, str, bool]:
    """Return a snapshot of a process: (descriptor of a file, device, whether it has a history).

    Raises RequestError, FormatError.
    """
    found, descriptors = _ask(pid, {"ask": "snapshot", "device": device}, SNAPSHOT_SECONDS)
    if len(descriptors) != 1 or not isinstance(found, dict) or not isinstance(found.get("device"), str):
        wire.close_all(descriptors)
        raise FormatError(f"process {pid} sent no snapshot")
    return descriptors[0], printable(found["device"]), bool(found.get("history"))
