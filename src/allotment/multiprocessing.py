"""Buffers through `multiprocessing`, as the same memory.

    import allotment.multiprocessing                    # from now on
    queue.put(buffer)                                   # Queue, Pipe, Process arguments, Pool, concurrent.futures
    with allotment.multiprocessing.sharing():           # any other pickle
        data = pickle.dumps(buffer)
    with allotment.multiprocessing.sharing(all_threads=True):  # Dask, which pickles on a separate thread
        client.submit(work, buffer, pure=False).result()

Importing this module turns it on, as importing `torch.multiprocessing` does for tensors: other objects arrive as
copies, and a program that sends buffers must know that they do not. The buffer's memory must be shareable (host memory:
settings key `shareable:True`). The owner keeps a sent block until the receiver opens it, for a minute at most; then the
receiver has it until it closes it.
"""

from __future__ import annotations

from multiprocessing.reduction import ForkingPickler
from typing import Any

from allotment._allocators.buffer import Buffer
from allotment._allocators.opened import shared_form
from allotment._sharing.pickling import HOLD_SECONDS, sharing

__all__ = ["sharing"]


def _reduce(buffer: Buffer) -> tuple[Any, ...]:
    return shared_form(buffer, HOLD_SECONDS)


ForkingPickler.register(Buffer, _reduce)
