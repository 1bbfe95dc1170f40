"""What growing in place costs: per mapped page, per pair, and as the segment grows.

    python benchmarks/virtual_memory.py [--json]
    python benchmarks/virtual_memory.py --costs DEVICE [--write]

Prints the cost of a mapped page on the host device, the ratio of a malloc + free pair with expandable segments
on over off (goal: <= 1.15), and how the cost of a grow changes from a thousand mapped pages to a hundred thousand
(simulated device: what is measured is the engine).

With --costs it measures instead what the calls of a device's driver cost ("cuda:0"), as `allotment calibrate` does,
prints them, and with --write puts them where they come along: `src/allotment/lab/replay/driver_costs.json`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path

import allotment
from allotment._allocators.files import replaced
from allotment.lab.bench.run import python_pair_ns
from allotment.lab.calibrate import measure_costs
from allotment.lab.replay import driver_costs
from allotment.lab.replay.driver_costs import write_costs

MIB = 1 << 20
PAGE = 20 * MIB
ROUNDS = 9


def page_us(pages: int = 64) -> float:
    """Microseconds per page mapped and per page given back, on real memory that is not touched."""
    allocator = allotment.Allocator("host", settings="compat:newest,expandable_segments:True")
    start = time.perf_counter_ns()
    blocks = [allocator.malloc(PAGE) for _ in range(pages)]
    taken = time.perf_counter_ns() - start
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    return taken / pages / 1e3


def pair_ratio(pairs: int = 200_000) -> tuple[float, float, float]:
    """A pair of a small block, expandable over plain, in turns: median, least, most."""
    growing = allotment.Allocator("sim:64GiB", settings="compat:newest,expandable_segments:True")
    plain = allotment.Allocator("sim:64GiB", settings="compat:newest")
    ratios = [
        python_pair_ns(growing.malloc, growing.free, pairs) / python_pair_ns(plain.malloc, plain.free, pairs)
        for _ in range(ROUNDS)
    ]
    return statistics.median(ratios), min(ratios), max(ratios)


def grow_us(allocator: allotment.Allocator, count: int) -> float:
    """Microseconds per request that maps one more page."""
    start = time.perf_counter_ns()
    for _ in range(count):
        allocator.malloc(PAGE)
    return (time.perf_counter_ns() - start) / count / 1e3


def growth() -> tuple[float, float]:
    """Cost of a grow with 1,000 pages mapped, and with 100,000."""
    allocator = allotment.Allocator("sim:4096GiB", settings="compat:newest,expandable_segments:True")
    grow_us(allocator, 1_000)
    few = grow_us(allocator, 1_000)
    grow_us(allocator, 98_000)
    many = grow_us(allocator, 1_000)
    return few, many


def write_driver_costs(device: str, write: bool) -> None:
    name, costs = measure_costs(device)
    for kind, points in costs.items():
        print(f"{kind:10}", "  ".join(f"{cost} us" if size == 0 else f"{size} MiB {cost} us" for size, cost in points))
    if write:
        with replaced(Path(driver_costs.__file__).parent / "driver_costs.json") as file:
            write_costs(file, name, costs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--costs", metavar="DEVICE", help="what the calls of a device's driver cost")
    parser.add_argument("--write", action="store_true", help="keep them for replays")
    arguments = parser.parse_args()
    if arguments.costs:
        write_driver_costs(arguments.costs, arguments.write)
        return
    as_json = arguments.json
    pages = sorted(page_us() for _ in range(ROUNDS))
    ratio, least, most = pair_ratio()
    few, many = growth()
    figures = {
        "map_us_per_20MiB_page": pages[len(pages) // 2],
        "map_us_spread": [pages[0], pages[-1]],
        "pair_expandable_over_plain": ratio,
        "pair_ratio_spread": [least, most],
        "grow_us_at_1000_pages": few,
        "grow_us_at_100000_pages": many,
        "grow_growth": many / few,
    }
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:32} {value if isinstance(value, list) else round(value, 3)}")


if __name__ == "__main__":
    main()
