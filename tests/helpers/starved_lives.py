"""Lives of an allocator in a process whose C library refuses memory: run with failing_memory.c preloaded.

    python starved_lives.py PLACEMENT LIFE...

Each life runs once to count the engine's requests to the C library; then once for each of these requests, which is
refused, every second time together with the two that follow. A step may then raise MemoryError or one of the engine's
errors, and the state stays consistent, as in lives.py. Prints the number of requests of each life.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Any

from helpers.effort import sample
from helpers.lives import Life

library = ctypes.CDLL(None)
library.failing_memory_plan.argtypes = [ctypes.c_long, ctypes.c_long]
library.failing_memory_turn.restype = ctypes.c_long


class StarvedLife(Life):
    def act(self, step: str, *arguments: Any) -> None:
        library.failing_memory_turn(True)
        try:
            super().act(step, *arguments)
        except MemoryError:
            pass
        finally:
            library.failing_memory_turn(False)


def sweep(placement: str, name: str) -> int:
    library.failing_memory_plan(0, 0)
    life = StarvedLife(placement)
    life.live(name)
    requests = library.failing_memory_turn(False)
    life.end()
    outcomes = life.live(name)
    life.end()
    for after in sample(range(requests)):
        times = 1 + after % 2 * 2
        library.failing_memory_plan(after, times)
        life = StarvedLife(placement)
        life.live(name)
        library.failing_memory_plan(0, 0)
        life.end()
        assert life.live(name) == outcomes, f"{name}, {times} refused from {after} on: not as before"
        life.end()
    return requests


if __name__ == "__main__":
    for name in sys.argv[2:]:
        print(name, sweep(sys.argv[1], name), flush=True)
