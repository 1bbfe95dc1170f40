"""How malloc and free scale from 1 to 16 threads, beside the limit of the machine.

    python benchmarks/threads.py [--threads 1,2,4,8,16] [--seconds 0.5] [--rounds 5] [--device host,sim:64GiB]
                                 [--out FILE.json]

Each thread frees and allocates one block of 1000 bytes on its own stream, as often as it can: from Python
(`Allocator.malloc` and `free`), and from C (a compiled loop over the entry points, without the interpreter). All
threads share one device, or each has its own device. The limit of the machine is the same number of threads that
count, each on its own: from Python an empty compiled call, from C a walk over a private array. With an interpreter lock
the Python threads take turns; run it with a free-threaded Python to see them in parallel. Figures are millions of pairs
a second, medians of the rounds, which take turns through all figures; "x" is the ratio to one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from allotment import Allocator
from allotment.lab.bench.hot_path import CPairs, EmptyAllocator, pointer_walk_ns
from allotment.lab.bench.run import SETTINGS

BLOCK = 1000
BATCH = 2_000  # pairs between two looks at the clock
Work = Callable[[], object]  # BATCH pairs


def python_pairs(allocator: Allocator | EmptyAllocator, stream: int) -> Work:
    def work() -> None:
        malloc, free = allocator.malloc, allocator.free
        for _ in range(BATCH):
            free(malloc(BLOCK, stream))

    return work


def c_pairs(allocator: Allocator, stream: int) -> Work:
    pairs = CPairs(allocator)
    return lambda: pairs.pair_ns(BLOCK, BATCH, stream)


def rate(works: list[Work], seconds: float) -> float:
    """Return the millions of pairs per second of one thread for each work, all at once."""
    start = threading.Barrier(len(works) + 1)
    done = [0] * len(works)
    over = [False]

    def run(place: int) -> None:
        work, count = works[place], 0
        work()
        start.wait()
        while not over[0]:
            work()
            count += BATCH
        done[place] = count

    threads = [threading.Thread(target=run, args=(place,)) for place in range(len(works))]
    for thread in threads:
        thread.start()
    start.wait()
    began = time.perf_counter()
    time.sleep(seconds)
    over[0] = True
    for thread in threads:
        thread.join()
    return sum(done) / (time.perf_counter() - began) / 1e6


def works_of(figure: str, device: str, count: int) -> list[Work]:
    if figure == "limit, Python":
        return [python_pairs(EmptyAllocator(), 0) for _ in range(count)]
    if figure == "limit, C":
        return [lambda: pointer_walk_ns(64, BATCH) for _ in range(count)]
    make = python_pairs if "Python" in figure else c_pairs
    if "one device" in figure:
        shared = Allocator(device, settings=SETTINGS)
        return [make(shared, place + 1) for place in range(count)]
    return [make(Allocator(f"{device}#{place}" if ":" in device else device, settings=SETTINGS), 0)
            for place in range(count)]  # fmt: skip


FIGURES = ("one device, Python", "one device, C", "own devices, Python", "own devices, C")
LIMITS = ("limit, Python", "limit, C")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--threads", default="1,2,4,8,16")
    parser.add_argument("--seconds", type=float, default=0.5, help="of each figure in each round")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="host,sim:64GiB")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    counts = [int(count) for count in options.threads.split(",")]
    rows = [(figure, "") for figure in LIMITS]
    rows += [(figure, device) for device in options.device.split(",") for figure in FIGURES]
    samples: dict[tuple[str, str, int], list[float]] = {}
    for _ in range(options.rounds):
        for figure, device in rows:
            for count in counts:
                measured = rate(works_of(figure, device, count), options.seconds)
                samples.setdefault((figure, device, count), []).append(measured)
    has_lock = getattr(sys, "_is_gil_enabled", lambda: True)()
    machine = f"{os.cpu_count()} CPUs, Python {platform.python_version()}, {'with' if has_lock else 'without'} its lock"
    print(f"{machine}; millions of pairs a second\n")
    print(f"| | {' | '.join(f'{count} threads' for count in counts)} |\n|---|{'---|' * len(counts)}")
    table = []
    for figure, device in rows:
        rates = [statistics.median(samples[figure, device, count]) for count in counts]
        table.append({"figure": figure, "device": device, "rates": dict(zip(counts, rates, strict=True))})
        cells = [f"{measured:.2f} ({measured / rates[0]:.2f}x)" for measured in rates]
        print(f"| {device + ', ' if device else ''}{figure} | {' | '.join(cells)} |")
    if options.out is not None:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({"machine": machine, "rows": table}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
