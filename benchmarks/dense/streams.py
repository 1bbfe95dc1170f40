"""The cost of many streams under dense placement over their cost under PyTorch's, both in one run and in turns.

    python benchmarks/dense/streams.py [--streams 10 100 1000 8000] [--rounds 5] [--requests 40000]

Two patterns. `waves`: every stream allocates, then every stream frees what it has. `mixed`: a stream drawn at random
allocates and frees its oldest block; every tenth block is used by another stream too. Prints for each the time of a
malloc with its free in microseconds, the host memory that the process took for all of it in MiB, and both as ratios to
PyTorch's placement. A simulated device, so no driver is in the figures. For a build with optimization. Each figure is
measured in a separate process; time is the median of the rounds.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time
from collections import deque

import allotment

PLACEMENTS = {"torch": "compat:newest", "dense": "compat:newest,placement:dense"}
SIZES = (512, 3000, 20_000, 100_000, 300_000, 1_500_000, 3_000_000)
KEPT = 2
"""The number of blocks that a stream has at a time."""


def resident() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096


class Waves:
    def __init__(self, allocator: allotment.Allocator, streams: int) -> None:
        self.allocator = allocator
        self.streams = range(streams)
        self.random = random.Random(1)

    def run(self, requests: int) -> int:
        done = 0
        while done < requests:
            sizes = self.random.choices(SIZES, k=len(self.streams))
            live = [self.allocator.malloc(size, stream) for size, stream in zip(sizes, self.streams, strict=True)]
            for address in live:
                self.allocator.free(address)
            done += len(live)
        return done


class Mixed:
    def __init__(self, allocator: allotment.Allocator, streams: int) -> None:
        self.allocator = allocator
        self.live: list[deque[int]] = [deque() for _ in range(streams)]
        self.random = random.Random(1)

    def run(self, requests: int) -> int:
        malloc, free, record_stream = self.allocator.malloc, self.allocator.free, self.allocator.record_stream
        streams = self.random.choices(range(len(self.live)), k=requests)
        sizes = self.random.choices(SIZES, k=requests)
        for i, (stream, size) in enumerate(zip(streams, sizes, strict=True)):
            mine = self.live[stream]
            mine.append(malloc(size, stream))
            if i % 10 == 0:
                record_stream(mine[-1], streams[i - 1])
            if len(mine) > KEPT:
                free(mine.popleft())
        return requests


PATTERNS = {"waves": Waves, "mixed": Mixed}


def measure(pattern: str, placement: str, streams: int, rounds: int, requests: int) -> tuple[float, float]:
    """Return microseconds per request, and MiB."""
    allocator = allotment.Allocator("sim:4TiB", settings=PLACEMENTS[placement])
    allocator.free(allocator.malloc(512))
    before = resident()
    program = PATTERNS[pattern](allocator, streams)
    program.run((KEPT + 1) * streams)
    times = []
    for _ in range(rounds):
        begin = time.process_time()
        count = program.run(requests)
        times.append((time.process_time() - begin) / count * 1e6)
    return statistics.median(times), (resident() - before) / 2**20


def measured_apart(*arguments: object) -> tuple[float, float]:
    """The same in a separate process."""
    command = [sys.executable, __file__, "--one", *map(str, arguments)]
    us, mib = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    return float(us), float(mib)


def main() -> None:
    parser = argparse.ArgumentParser(description="Many streams under dense placement and under PyTorch's.")
    parser.add_argument("--streams", type=int, nargs="+", default=[10, 100, 1000, 8000])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=40_000)
    parser.add_argument("--one", nargs=5, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        pattern, placement, *numbers = options.one
        print(*measure(pattern, placement, *map(int, numbers)))
        return
    titles = ("pattern", "streams", "torch us", "dense us", "ratio", "torch MiB", "dense MiB", "ratio")
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    for pattern in PATTERNS:
        for streams in options.streams:
            both = [measured_apart(pattern, one, streams, options.rounds, options.requests) for one in PLACEMENTS]
            (torch_us, torch_mib), (dense_us, dense_mib) = both
            cells = [f"{torch_us:.2f}", f"{dense_us:.2f}", f"{dense_us / torch_us:.2f}"]
            cells += [f"{torch_mib:.1f}", f"{dense_mib:.1f}", f"{dense_mib / max(torch_mib, 0.1):.2f}"]
            print(f"| {pattern} | {streams:,} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
