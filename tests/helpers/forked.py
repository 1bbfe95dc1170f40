"""Runs code in a forked child."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable


def fork_past_python() -> int:
    """Fork as a library in C does: Python's hooks are not called.

    Python does not support that: if another thread waits for the interpreter lock, the child waits for ever to pass the
    lock on. So all waiting threads get the lock first, and no thread waits for it at the moment of the fork.
    """
    fork = ctypes.PyDLL(None).fork
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1_000)
    try:
        time.sleep(0.01)
        child: int = fork()
    finally:
        sys.setswitchinterval(interval)
    return child


def goes_well_in_child(action: Callable[[], object], fork: Callable[[], int] = os.fork) -> bool:
    """Return whether a forked child can do `action` without an exception; its traceback goes to standard error."""
    child = fork()
    if child == 0:
        try:
            action()
        except BaseException:
            os.write(2, traceback.format_exc().encode())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return status == 0
