"""A second process that runs pieces of program, for tests that need two processes.

    with Peer() as peer:
        peer.run("buffer = open_shared(handle)", handle=handle)
        assert peer.run("result = bytes(buffer[:5])") == b"hello"
        peer.kill()

An exception of a piece of program is raised here.
"""

from __future__ import annotations

import gc
import os
import pickle
import resource
import select
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAM = "from helpers.peer import serve; serve()"
SECONDS = 60


class Peer:
    """A process with the names of `allotment` and those that earlier pieces of program have defined."""

    def __init__(self, *command: str, **environment: str) -> None:
        """`command` precedes the interpreter's: for instance, it starts the process in a separate namespace."""
        path = os.pathsep.join([str(Path(__file__).parents[1]), *filter(None, sys.path)])
        self.process = subprocess.Popen(
            [*command, sys.executable, "-c", PROGRAM],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": path, **environment},
        )

    def __enter__(self) -> Peer:
        return self

    def __exit__(self, *error: object) -> None:
        self.end()

    @property
    def pid(self) -> int:
        return self.process.pid

    def begin(self, program: str, /, **names: Any) -> None:
        """Start a piece of program; `finish` returns its `result`."""
        assert self.process.stdin is not None
        pickle.dump((textwrap.dedent(program), names), self.process.stdin)
        self.process.stdin.flush()

    def can_finish(self, seconds: float) -> bool:
        """Return whether it replies within some seconds."""
        return bool(select.select([self.process.stdout], [], [], seconds)[0])

    def finish(self) -> Any:
        assert self.process.stdout is not None
        went_well, value = pickle.load(self.process.stdout)
        if not went_well:
            raise value
        return value

    def run(self, program: str, /, **names: Any) -> Any:
        self.begin(program, **names)
        return self.finish()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(SECONDS)

    def end(self) -> None:
        assert self.process.stdin is not None and self.process.stdout is not None
        if self.process.poll() is None:
            self.process.stdin.close()
            try:
                self.process.wait(SECONDS)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()
                raise
        self.process.stdout.close()


def serve() -> None:
    """The program of the second process."""
    names: dict[str, Any] = {}
    exec("import ctypes, os, threading, allotment\nfrom allotment import *\nfrom helpers.peer import *", names)
    output = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    while True:
        try:
            program, given = pickle.load(sys.stdin.buffer)
        except EOFError:
            return
        try:
            names.pop("result", None)
            names.update(given)
            exec(program, names)
            reply = True, names.get("result")
        except BaseException as error:
            error.__traceback__ = None
            reply = False, error
        pickle.dump(reply, output)
        output.flush()


def wait_until(is_so: Callable[[], bool], seconds: float = SECONDS) -> None:
    """Wait for a condition; fails if that takes too long."""
    deadline = time.monotonic() + seconds
    while not is_so():
        assert time.monotonic() < deadline, "it does not come true"
        time.sleep(0.001)


def everything_is_closed() -> bool:
    """Return whether no foreign block is open here and none of ours elsewhere: threads close them."""
    from allotment._sharing import importer, owner

    here = importer._importer
    return not (here.links or here.mappings.by_key or owner._owner.clients)


def descriptors() -> int:
    """Return the number of open descriptors of this process."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def take_all_descriptors() -> list[int]:
    """Open descriptors until none is left, by a limit just above the highest; `close_descriptors` undoes it."""
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    taken = []
    try:
        while True:
            taken.append(os.dup(0))
    except OSError:
        return taken


def close_descriptors(taken: list[int]) -> None:
    for descriptor in taken:
        os.close(descriptor)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(most, 1024), most))


def mappings() -> int:
    """Return the number of mappings of shared memory of this process."""
    return sum("memfd:allotment" in line for line in Path("/proc/self/maps").read_text().splitlines())


def address_space() -> int:
    """Return the bytes of addresses of this process, without the heap, whose size varies."""
    total = 0
    for line in Path("/proc/self/maps").read_text().splitlines():
        extent, access, _, device, _, *name = line.split()
        first, last = (int(end, 16) for end in extent.split("-"))
        is_heap = access == "rw-p" and device == "00:00" and name in ([], ["[heap]"])
        total += 0 if is_heap else last - first
    return total
