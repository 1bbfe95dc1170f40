"""Buffers through `multiprocessing`, as the same memory.

    import allotment.multiprocessing                    # from now on
    queue.put(buffer)                                   # Queue, Pipe, Process arguments, Pool, concurrent.futures
    with allotment.multiprocessing.sharing():           # any other pickle
        data = pickle.dumps(buffer)
    with allotment.multiprocessing.sharing(all_threads=True):  # Dask, which pickles on a thread of its own
        client.submit(work, buffer, pure=False).result()

Importing it is what turns it on, as importing `torch.multiprocessing` does for tensors: objects that go through a queue
arrive as copies, and whoever sends a buffer must know that this one does not. The buffer has to be of memory that can
be shared (host memory: settings key `shareable:True`). Its owner holds what is sent until it is received, for a minute
at most; after that the receiver has it until it closes it.
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
