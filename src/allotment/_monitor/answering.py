"""The thread that answers other processes of the same user about this process's allocators.

It starts with the first allocator whose settings say `monitor:True`, or with any if ALLOTMENT_MONITOR is 1. It waits on
a socket, and reads figures only when another process asks, so nothing is added to a request.

The socket's name is in the system's abstract namespace and ends with the process, so a killed process leaves nothing
behind. The system reports which user connects; the thread refuses other users.
"""

from __future__ import annotations

import atexit
import json
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any
from weakref import WeakSet

from allotment import _logs
from allotment._core.tools.fork_safe_lock import fork_safe_lock
from allotment._monitor.figures import Line, report_of
from allotment._sharing import wire
from allotment._sharing.identity import process_token, user_id
from allotment._texts import printable
from allotment.errors import AllotmentError, FormatError, RequestError

NAME = b"\0allotment-monitor-%d-"
"""The first part of a user's socket names; the number of the process and its token follow."""
REQUEST_MOST = 4096
PATIENCE_SECONDS = 2.0
LINES_MOST = 50
COMMAND_MOST = 1000
_BACKLOG = 8  # a stopped process must not accumulate questions for ever


class _Monitor:
    """The allocators and figures that this process reports."""

    def __init__(self) -> None:
        self.lock = fork_safe_lock()
        self.allocators: WeakSet[Any] = WeakSet()
        self.listener: socket.socket | None = None
        self.thread: threading.Thread | None = None
        self.is_stopping = False

    def add(self, allocator: Any) -> None:
        with self.lock:
            self.allocators.add(allocator)
            if self.thread is None:
                try:
                    self.start()
                except OSError as error:  # short of descriptors, perhaps; the next allocator tries again
                    _logs.not_monitored(error)

    def start(self) -> None:
        """pre: locked"""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC)
        try:
            listener.bind(NAME % user_id() + b"%d-%s" % (os.getpid(), process_token().hex().encode()))
            listener.listen(_BACKLOG)
        except OSError:
            listener.close()
            raise
        self.listener = listener
        self.thread = threading.Thread(target=self.serve, name="allotment monitor", daemon=True)
        self.thread.start()

    def serve(self) -> None:
        assert self.listener is not None
        while not self.is_stopping:
            try:
                connection, _ = self.listener.accept()
            except OSError as error:
                if error.errno not in wire.SHORTAGES:
                    return  # the end of the process
                threading.Event().wait(PATIENCE_SECONDS)
                continue
            with connection, suppress(OSError):  # a process that hung up
                if wire.peer_of(connection)[1] == user_id():
                    connection.settimeout(PATIENCE_SECONDS)
                    self.answer(connection)

    def answer(self, connection: socket.socket) -> None:
        descriptors: list[int] = []
        try:
            reply = self.reply(json.loads(connection.recv(REQUEST_MOST)), descriptors)
        except OSError:
            raise
        except (AllotmentError, ValueError, MemoryError) as error:
            reply = {"error": str(error)}
        except Exception as error:  # an error of a device, or of a user's class
            reply = {"error": f"{type(error).__name__}: {error}"}
        data = json.dumps(reply).encode()
        try:
            if descriptors:
                socket.send_fds(connection, [data[:1]], descriptors)
                data = data[1:]
            connection.sendall(data)
        finally:
            wire.close_all(descriptors)

    def reply(self, request: Any, descriptors: list[int]) -> dict[str, Any]:
        answers: dict[str, Callable[[], dict[str, Any]]] = {
            "figures": lambda: report_of(os.getpid(), _command(), self.living()).as_json(),
            "lines": lambda: {"lines": [asdict(line) for line in self.lines()]},
            "snapshot": lambda: self.snapshot(request.get("device"), descriptors),
        }
        if not isinstance(request, dict) or request.get("ask") not in answers:
            raise FormatError("this process does not know this question; is its Allotment older?")
        return answers[request["ask"]]()

    def living(self) -> list[Any]:
        with self.lock:
            return [each for each in self.allocators if not each.closed]

    def lines(self) -> list[Line]:
        """Return the lines of code that hold most, of all allocators; `where` is "" for memory without a stack."""
        found: dict[tuple[str, str], list[int]] = {}
        for allocator in self.living():
            for each in allocator.history.alive() if hasattr(allocator, "history") else ():
                sums = found.setdefault((allocator.device.name, each.where), [0, 0])
                sums[0] += each.bytes
                sums[1] += each.blocks
        lines = [Line(device, where, size, blocks) for (device, where), (size, blocks) in found.items()]
        return sorted(lines, key=lambda line: -line.bytes)[:LINES_MOST]

    def snapshot(self, device: str | None, descriptors: list[int]) -> dict[str, Any]:
        """Write a snapshot to a file without a name, and send its descriptor.

        The snapshot is of the allocator that holds most memory, on `device` unless that is None.
        """
        recording = [each for each in self.living() if hasattr(each, "history")]
        fitting = [each for each in recording if device in (None, each.device.name)]
        if not fitting:
            names = ", ".join(sorted({each.device.name for each in recording})) or "none"
            raise RequestError(f"no snapshot can be written of {device or 'this process'}; its devices are: {names}")
        chosen = max(fitting, key=lambda each: int(each.stats()["reserved_bytes.all.current"]))
        with tempfile.TemporaryDirectory(prefix="allotment-") as folder:
            path = Path(folder) / "snapshot"
            chosen.history.dump_snapshot(path)
            descriptors.append(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
        return {"device": chosen.device.name, "history": chosen.history.is_enabled()}

    def stop(self) -> None:
        """At exit: stop the thread from reading allocators."""
        self.is_stopping = True
        if self.listener is not None and self.thread is not None:
            with suppress(OSError):
                self.listener.shutdown(socket.SHUT_RDWR)  # makes accept return
            self.thread.join(PATIENCE_SECONDS)


def _command() -> str:
    try:
        words = Path("/proc/self/cmdline").read_bytes().split(b"\0")
    except OSError:
        return printable(" ".join(sys.argv))[:COMMAND_MOST]
    return printable(b" ".join(words).decode("utf-8", "replace").strip())[:COMMAND_MOST]


_monitor = _Monitor()


def _in_child() -> None:
    """In a forked child: close the parent's socket; the child answers from its own first allocator on."""
    global _monitor
    left, _monitor = _monitor, _Monitor()
    if left.listener is not None:
        left.listener.close()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)
atexit.register(lambda: _monitor.stop())


def announce(allocator: Any) -> None:
    """Let other processes of this user ask for an allocator's figures."""
    _monitor.add(allocator)
