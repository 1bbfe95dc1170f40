"""Functions that worker processes call with a buffer that is sent to them."""

from __future__ import annotations

from typing import Any

import allotment.multiprocessing  # noqa: F401  (they send buffers too)
from allotment import Buffer


def fill(buffer: Buffer, value: int) -> int:
    """Write all of it; return its length."""
    memoryview(buffer)[:] = bytes([value]) * len(buffer)
    return len(buffer)


def fill_what_comes(queue: Any, value: int, done: Any) -> None:
    buffer = queue.get()
    done.put(fill(buffer, value))


def fill_from_pipe(connection: Any, value: int) -> None:
    buffer = connection.recv()
    connection.send(fill(buffer, value))
    connection.send(buffer)
    connection.recv()


def close_what_comes(queue: Any, value: int, done: Any) -> None:
    """Receive buffers, write and close each, until None comes."""
    while (buffer := queue.get()) is not None:
        with buffer:
            fill(buffer, value)
        done.put(value)
