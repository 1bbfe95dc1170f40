"""Eight threads on two host devices for any time, with every block's content checked.

    python tests/stress/threads.py [--seconds 300] [--threads 8] [--seed 1] [--settings S] [--pools]

Each thread allocates, fills blocks with its own pattern, passes blocks to other threads, records streams, frees, and
sometimes empties the cache, captures a graph into its own pool or uses a private pool. The thread that frees a block
checks that no other wrote into it. Exits with 0 if no error occurred.
"""

from __future__ import annotations

import argparse
import ctypes
import queue
import random
import sys
import threading
import time
from contextlib import suppress

import numpy as np

import allotment


def array_at(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


class Stress:
    def __init__(self, seconds: float, threads: int, seed: int, settings: str, pools: bool) -> None:
        self.allocators = [allotment.Allocator("host", settings=settings, limit="2GiB") for _ in range(2)]
        self.streams = [[allotment.Stream(allocator) for _ in range(3)] for allocator in self.allocators]
        self.handed_over: queue.SimpleQueue[tuple[int, int, int, int]] = queue.SimpleQueue()
        self.deadline = time.monotonic() + seconds
        self.threads, self.seed, self.pools = threads, seed, pools
        self.errors: list[str] = []
        self.blocks = 0

    def check_and_free(self, which: int, address: int, size: int, pattern: int) -> None:
        if not (array_at(address, size) == pattern).all():
            self.errors.append(f"block {address:#x} of {size} bytes on device {which} was overwritten")
        self.allocators[which].free(address)

    def step(self, chance: random.Random, mine: list[tuple[int, int, int, int]], pattern: int) -> None:
        which = chance.randrange(2)
        allocator, streams = self.allocators[which], self.streams[which]
        least, most = chance.choice(((1, 4096), (4096, 1 << 20), (1 << 20, 4 << 20)))
        size = chance.randrange(least, most)
        try:
            address = allocator.malloc(size, chance.choice(streams))
        except allotment.OutOfMemoryError:
            while mine:
                self.check_and_free(*mine.pop())
            return
        array_at(address, size).fill(pattern)
        self.blocks += 1
        if chance.random() < 0.2:
            stream = chance.choice(streams)
            stream.submit(array_at(address, size).sum)
            allocator.record_stream(address, stream)
        if chance.random() < 0.3:
            self.handed_over.put((which, address, size, pattern))
        else:
            mine.append((which, address, size, pattern))
        while len(mine) > 12:
            self.check_and_free(*mine.pop(chance.randrange(len(mine))))
        if chance.random() < 0.3:
            with suppress(queue.Empty):
                self.check_and_free(*self.handed_over.get_nowait())
        if chance.random() < 0.002:
            allocator.empty_cache()

    def pool_step(self, chance: random.Random, pattern: int) -> None:
        """Make requests of this thread inside its pool, and capture and replay a graph on its own stream."""
        allocator = self.allocators[chance.randrange(2)]
        with allocator.pool() as pool:
            address = allocator.malloc(5000)
            array_at(address, 5000).fill(pattern)
            if allocator.history.segments(pool.id)[0]["segment_pool_id"] != pool.id:
                self.errors.append("a request inside a pool was served from outside")
            if not (array_at(address, 5000) == pattern).all():
                self.errors.append("a block of a pool was overwritten")
            allocator.free(address)
        pool.close()
        stream = allotment.Stream(allocator)
        with allotment.capture(stream, allocator=allocator) as graph:
            address = allocator.malloc(7000, stream)
            stream.submit(array_at(address, 7000).fill, pattern)
        for _ in range(3):
            graph.replay()
            stream.synchronize()
            if not (array_at(address, 7000) == pattern).all():
                self.errors.append("a replay's memory was overwritten")
            array_at(address, 7000).fill(0)
        allocator.free(address)
        graph.reset()
        stream.destroy()

    def work(self, number: int) -> None:
        chance = random.Random(self.seed * 1000 + number)
        mine: list[tuple[int, int, int, int]] = []
        try:
            while time.monotonic() < self.deadline and not self.errors:
                self.step(chance, mine, number + 1)
                if self.pools and chance.random() < 0.02:
                    self.pool_step(chance, number + 1)
            for block in mine:
                self.check_and_free(*block)
        except Exception as error:
            self.errors.append(f"thread {number}: {type(error).__name__}: {error}")

    def run(self) -> int:
        threads = [threading.Thread(target=self.work, args=(number,)) for number in range(self.threads)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        while not self.handed_over.empty():
            self.check_and_free(*self.handed_over.get_nowait())
        for allocator, streams in zip(self.allocators, self.streams, strict=True):
            for stream in streams:
                stream.synchronize()
            allocator.empty_cache()
            allocator.inspection.check_invariants()
            if left := allocator.stats()["reserved_bytes.all.current"]:
                self.errors.append(f"{left} bytes are still reserved after everything was freed")
        for error in self.errors[:10]:
            print(error, file=sys.stderr)
        print(f"{self.blocks} blocks, {self.threads} threads, 2 devices, seed {self.seed}: {len(self.errors)} errors")
        return 1 if self.errors else 0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=300)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="")
    parser.add_argument("--pools", action="store_true", help="private pools and captures too")
    options = parser.parse_args()
    sys.exit(Stress(options.seconds, options.threads, options.seed, options.settings, options.pools).run())


if __name__ == "__main__":
    main()
