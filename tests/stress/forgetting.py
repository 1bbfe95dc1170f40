"""Creates and drops objects in great numbers: the process must not grow.

    python tests/stress/forgetting.py [--times 100000] [--pairs 1000000] [--only NAME]

Each kind runs in a fresh process: a tenth of its rounds, a look at the resident memory, the rest, another look. Prints
one JSON object; exit 1 if a kind grew by more than a page in a hundred rounds.
"""

from __future__ import annotations

import argparse
import gc
import json
import subprocess
import sys
from collections.abc import Callable

import allotment

PAGE = 4096
ROUNDS_FOR_A_PAGE = 100


def resident() -> int:
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * PAGE


def pairs(device: str) -> Callable[[], None]:
    allocator = allotment.Allocator(device)

    def once() -> None:
        allocator.free(allocator.malloc(1000))

    return once


def allocators(device: str) -> Callable[[], None]:
    def once() -> None:
        with allotment.Allocator(device) as allocator:
            allocator.free(allocator.malloc(1000))

    return once


def streams(device: str) -> Callable[[], None]:
    allocator = allotment.Allocator(device)

    def once() -> None:
        stream, other = allotment.Stream(allocator), allotment.Stream(allocator)
        address = allocator.malloc(1000, stream)
        allocator.record_stream(address, other)
        allocator.free(address)
        stream.destroy()
        other.destroy()
        allocator.empty_cache()

    return once


def pools(device: str, settings: str = "") -> Callable[[], None]:
    allocator = allotment.Allocator(device, settings=settings)

    def once() -> None:
        with allocator.pool() as pool:
            addresses = [allocator.malloc(3 << 20), allocator.malloc(30 << 20)]
        for address in addresses:
            allocator.free(address)
        pool.close()
        allocator.empty_cache()

    return once


def expandable_pools(device: str) -> Callable[[], None]:
    return pools(device, "expandable_segments:True")


def captures(device: str) -> Callable[[], None]:
    allocator = allotment.Allocator(device)
    stream = allotment.Stream(allocator)

    def once() -> None:
        with allotment.capture(stream) as graph:
            allocator.free(allocator.malloc(1000, stream))
        graph.reset()
        allocator.empty_cache()

    return once


KINDS: dict[str, tuple[Callable[[str], Callable[[], None]], tuple[str, ...]]] = {
    "pairs": (pairs, ("host", "sim:1GiB")),
    "allocators": (allocators, ("host", "sim:1GiB")),
    "streams": (streams, ("host", "sim:1GiB")),
    "pools": (pools, ("host", "sim:1GiB")),
    "expandable_pools": (expandable_pools, ("host", "sim:1GiB")),
    "captures": (captures, ("sim:1GiB",)),
}


def measure(kind: str, device: str, times: int) -> dict[str, int | str]:
    once = KINDS[kind][0](device)
    for _ in range(times // 10):
        once()
    before = resident()
    for _ in range(times - times // 10):
        once()
    return {"kind": kind, "device": device, "times": times, "before_bytes": before, "after_bytes": resident()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--times", type=int, default=100_000)
    parser.add_argument("--pairs", type=int, default=1_000_000)
    parser.add_argument("--only", choices=list(KINDS), action="append")
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        kind, device, times = given.work
        print(json.dumps(measure(kind, device, int(times))))
        return 0
    rows = []
    for kind in given.only or KINDS:
        for device in KINDS[kind][1]:
            times = given.pairs if kind == "pairs" else given.times
            worker = [sys.executable, __file__, "--work", kind, device, str(times)]
            rows.append(json.loads(subprocess.run(worker, capture_output=True, text=True, check=True).stdout))
            print(rows[-1], file=sys.stderr)
    grew = [row for row in rows if row["after_bytes"] - row["before_bytes"] > row["times"] // ROUNDS_FOR_A_PAGE * PAGE]
    print(json.dumps({"rows": rows, "grew": grew}))
    return 1 if grew else 0


if __name__ == "__main__":
    sys.exit(main())
