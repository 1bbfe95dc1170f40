"""Adds the reason to NumPy's own out-of-memory error.

NumPy creates the exception: it knows the array's shape, but not why the handler failed. So the handler's reason is
added to it as a note, when NumPy creates it or, where NumPy raises a bare MemoryError, when it leaves `caching`.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from allotment.numpy import _handler

_explained = False


def add_note(error: BaseException) -> None:
    """Add the reason of the calling thread's last refusal to an error, once."""
    reason = _handler.take_refusal()
    if reason is not None:
        error.add_note(f"allotment: {reason}")


def explain() -> None:
    """Make every NumPy error about an array that could not be allocated carry the reason."""
    global _explained
    if _explained:
        return
    _explained = True
    core = "numpy._core" if find_spec("numpy._core") else "numpy.core"  # the second before NumPy 2
    array_memory_error = import_module(f"{core}._exceptions")._ArrayMemoryError
    made_by_numpy = array_memory_error.__init__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:
        made_by_numpy(self, *args, **kwargs)
        add_note(self)

    array_memory_error.__init__ = __init__
