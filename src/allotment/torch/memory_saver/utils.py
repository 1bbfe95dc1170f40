"""Small functions of torch_memory_saver that programs and its tests import."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


def is_xpu() -> bool:
    """Whether this is a GPU of Intel's: False, since Allotment serves CUDA memory."""
    return False


@contextmanager
def change_env(key: str, value: str) -> Iterator[None]:
    """Set an environment variable inside the block, and restore it afterwards."""
    before = os.environ.get(key)
    os.environ[key] = value
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(key, None)
        else:
            os.environ[key] = before
