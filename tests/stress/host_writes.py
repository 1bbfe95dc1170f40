"""Memory that the calling thread writes at once, beside work that is still queued on freed blocks.

    python tests/stress/host_writes.py [--seconds 600] [--seed 1] [--settings S]

A program may free a block while work on it is still queued. Here such work fills the block late, with its own bytes. In
between the program makes arrays and buffers for the calling thread in every possible way, for all kinds of streams and
also from functions on streams, and fills them at once. Every byte of them must be unchanged when they are dropped.
Exits with 0 if no byte was wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from contextlib import nullcontext
from typing import Any

import numpy as np

import allotment
import allotment.numpy

LIMIT = "128MiB"
SIZES = (512, 70_000, 1 << 20, 3 << 20, 3 << 20, 9 << 20)
MOST_ARRAYS = 6
SLOW = (ctypes.c_char * (8 << 20))()


class HostWrites:
    def __init__(self, settings: str, draw: random.Random) -> None:
        self.allocator = allotment.Allocator("host", settings=settings, limit=LIMIT)
        self.tenant = self.allocator.tenant("writes")
        self.streams = [allotment.Stream.default(self.allocator), *(allotment.Stream(self.allocator) for _ in range(2))]
        self.draw = draw
        self.ways = 8 if settings in ("", "placement:torch") else 7  # NumPy accepts no memory that a child would share
        self.arrays: list[tuple[Any, int]] = []
        self.made = self.left = self.refused = 0
        self.wrong: list[str] = []

    def leave_work(self) -> None:
        """A block that is freed while queued work of its stream has yet to fill it."""
        stream, size = self.draw.choice(self.streams), self.draw.choice(SIZES)
        block = self.allocator.malloc(size, stream)
        stream.submit(ctypes.memset, ctypes.addressof(SLOW), 1, len(SLOW))
        stream.submit(ctypes.memset, block, self.draw.randrange(1, 256), size)
        self.allocator.free(block)
        self.left += 1

    def write_at_once(self) -> None:
        value = self.draw.randrange(256)
        array = self.array(value)
        array[:] = value
        self.arrays.append((array, value))
        self.made += 1

    def array(self, value: int) -> Any:
        alloc, how, size = self.allocator, self.draw.randrange(self.ways), self.draw.choice(SIZES)
        stream = self.draw.choice([None, *self.streams])
        if how == 0:
            return alloc.array(size, "uint8", stream=stream)
        if how == 1:
            return alloc.zeros(size, "uint8", stream=stream)
        if how == 2:
            return alloc.full(size, value, "uint8", stream=stream)
        if how == 3:
            return alloc.like(np.broadcast_to(np.uint8(0), size), stream=stream)
        with stream or nullcontext():
            if how == 4:
                return np.frombuffer(alloc.empty(size), "uint8")
            if how == 5:
                return np.frombuffer(self.tenant.empty(size), "uint8")
            if how == 6:
                return alloc.zeros(size, "uint8")
        with allotment.numpy.caching(alloc):
            return np.full(size, value, "uint8")

    def write_on_a_stream(self) -> None:
        """The same in a function that runs on a stream, which must not wait for others."""
        self.draw.choice(self.streams).submit(self.attempt, self.write_at_once)

    def compare_one(self) -> None:
        if self.arrays:
            self.compare(*self.arrays.pop(self.draw.randrange(len(self.arrays))))

    def compare(self, array: Any, value: int) -> None:
        bad = int(np.count_nonzero(array != value))
        if bad:
            self.wrong.append(f"{bad} of {array.size} bytes at {array.ctypes.data:#x} are not {value}")

    def attempt(self, action: Any) -> None:
        try:
            action()
        except MemoryError:  # ours, or NumPy's
            self.refused += 1
        except allotment.DeviceError as error:
            # A function on a stream cannot release cached memory while work is queued: see Stream.submit.
            if error.operation not in ("segment_free", "stream_synchronize", "event_synchronize"):
                raise
            self.refused += 1

    def step(self) -> None:
        kind = self.draw.random()
        if len(self.arrays) > MOST_ARRAYS or kind < 0.25:
            self.attempt(self.compare_one)
        elif kind < 0.6:
            self.attempt(self.leave_work)
        elif kind < 0.85:
            self.attempt(self.write_at_once)
        else:
            self.attempt(self.write_on_a_stream)

    def check(self) -> None:
        """Raise AssertionError if a byte is wrong, now that all work is done."""
        for stream in self.streams:
            stream.synchronize()
        while self.arrays:
            self.compare_one()
        self.allocator.inspection.check_invariants()
        assert not self.wrong, self.wrong

    def run(self, seconds: float = 0, steps: int = 0) -> dict[str, Any]:
        end, done = time.monotonic() + seconds, 0
        while (done < steps or time.monotonic() < end) and not self.wrong:
            self.step()
            done += 1
            if done % 100 == 0:
                self.check()
        self.check()
        return {"steps": done, "made": self.made, "left": self.left, "refused": self.refused, "wrong": self.wrong}


def main() -> int:
    parser = argparse.ArgumentParser(description="Memory that the calling thread writes, beside queued work.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="placement:dense")
    options = parser.parse_args()
    print(json.dumps(HostWrites(options.settings, random.Random(options.seed)).run(options.seconds)))
    return 0


if __name__ == "__main__":
    sys.exit(main())
