"""What it costs to give access to a run of mappings in one call, by how many they are.

    python benchmarks/gpu/mapped_runs.py [--device cuda:0] [--rounds 30]

Dense placement maps several chunks side by side and then calls `set_access` once for all of them. A replay prices such
a call like one for each mapping. That is an upper bound that nobody has measured, and makes access two thirds of the
driver time in replays of dense placement. Prints the medians in microseconds: of one call for the whole run, of a call
for each mapping, and what the first costs for each mapping beyond the first one. Takes seconds and at most 4 GiB.
"""

from __future__ import annotations

import argparse
import statistics
import time

from allotment._core.contract.probe import Probe
from allotment._devices import open_device

MIB = 1 << 20
SIZES = (2, 32, 64)
"""Sizes of chunks, in MiB."""
RUNS = (1, 2, 4, 16, 64)


def microseconds(probe: Probe, base: int, size: int, count: int, apart: bool) -> float:
    """Map `count` new chunks; return how long giving access to them takes, in one call or in a call for each."""
    index = probe.device.index
    chunks = [probe.chunk_create(size) for _ in range(count)]
    for place, chunk in enumerate(chunks):
        probe.map(base + place * size, size, chunk)
    start = time.perf_counter_ns()
    for place in range(count if apart else 1):
        probe.set_access(base + place * size, size if apart else count * size, index)
    taken = time.perf_counter_ns() - start
    for place, chunk in enumerate(chunks):
        probe.unmap(base + place * size, size)
        probe.chunk_release(chunk, size)
    return taken / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description="The cost of access to a run of mappings.")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--rounds", type=int, default=30)
    options = parser.parse_args()
    probe = Probe(open_device(options.device))
    print(f"{probe.device.name}\n\n| chunks | MiB each | one call, us | a call each, us | each further one, us |")
    print("|---|---|---|---|---|")
    for size in (mebibytes * MIB for mebibytes in SIZES):
        first = 0.0
        for count in RUNS:
            base = probe.range_reserve(count * size)
            rounds = [
                [microseconds(probe, base, size, count, apart) for apart in (False, True)]
                for _ in range(options.rounds)
            ]
            probe.range_release(base, count * size)
            together, apart = (statistics.median(column) for column in zip(*rounds, strict=True))
            first = first or together
            further = f"{(together - first) / (count - 1):.1f}" if count > 1 else ""
            print(f"| {count} | {size // MIB} | {together:.1f} | {apart:.1f} | {further} |", flush=True)


if __name__ == "__main__":
    main()
