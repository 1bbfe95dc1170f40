"""Running something in a forked child."""

from __future__ import annotations

import ctypes
import os
import sys
import time
import traceback
from collections.abc import Callable


def fork_past_python() -> int:
    """As a library in C does it: Python's hooks are not called.

    Python is not made for that: if another thread has asked for the interpreter, the child waits for ever to hand it
    over. So who has asked gets it first, and at the moment of the fork none asks.
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
    """Whether a forked child can do `action` without an exception; its traceback goes to standard error."""
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
