"""The cost of a request under dense placement over its cost under PyTorch's, both in one run and in turns.

    python benchmarks/dense/hot_path.py [--rounds 9] [--pairs 200000]

Prints for each figure the two medians in nanoseconds, and the median of their ratios with the minimum and the maximum.
For a quiet machine and a build with optimization; a simulated device, so no driver is in the figures.
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable

from allotment import Allocator
from allotment.lab.bench.hot_path import CPairs
from allotment.lab.bench.run import python_pair_ns

DEVICE = "sim:80GiB"
TORCH, DENSE = "compat:newest", "compat:newest,placement:dense"
BLOCK = 65536
LIVE = (256, 100_000)


def from_python(settings: str, pairs: int) -> Callable[[], float]:
    allocator = Allocator(DEVICE, settings=settings)
    return lambda: python_pair_ns(allocator.malloc, allocator.free, pairs)


def from_c(settings: str, pairs: int) -> Callable[[], float]:
    measured = CPairs(Allocator(DEVICE, settings=settings))
    return lambda: measured.pair_ns(BLOCK, 10 * pairs)


def replacing(settings: str, pairs: int, live: int) -> Callable[[], float]:
    measured = CPairs(Allocator(DEVICE, settings=settings))
    return lambda: measured.replacement_ns(live, BLOCK, pairs)


def main() -> None:
    parser = argparse.ArgumentParser(description="The hot path of dense placement over that of PyTorch's.")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--pairs", type=int, default=200_000)
    options = parser.parse_args()
    figures: dict[str, tuple[Callable[[], float], Callable[[], float]]] = {
        "pair from Python": (from_python(TORCH, options.pairs), from_python(DENSE, options.pairs)),
        "pair from C": (from_c(TORCH, options.pairs), from_c(DENSE, options.pairs)),
    }
    for live in LIVE:
        measures = replacing(TORCH, options.pairs, live), replacing(DENSE, options.pairs, live)
        figures[f"replacement among {live:,} live blocks"] = measures
    print("| figure | torch ns | dense ns | dense/torch | least | most |\n|---|---|---|---|---|---|")
    for name, (torch, dense) in figures.items():
        rounds = [(torch(), dense()) for _ in range(options.rounds)]
        ratios = [ours / theirs for theirs, ours in rounds]
        cells = [f"{statistics.median(one):.1f}" for one in zip(*rounds, strict=True)]
        cells += [f"{value:.2f}" for value in (statistics.median(ratios), min(ratios), max(ratios))]
        print(f"| {name} | " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
