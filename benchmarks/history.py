"""What history costs, in one run: python benchmarks/history.py [--json]

A malloc + free pair with history off, on without stacks, and on with Python stacks, taken in turns; and the time of a
snapshot with 100,000 events (goal: under 50 ms without stacks).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

import allotment
from allotment.lab.bench import python_pair_ns

ROUNDS = 9
PAIRS = 30_000
EVENTS = 100_000


def allocator_with(context: str | None, enabled: bool) -> allotment.Allocator:
    allocator = allotment.Allocator("sim:64GiB")
    if enabled:
        allocator.record_history("all", context, max_entries=EVENTS)
    return allocator


def snapshot_ms(context: str | None) -> float:
    allocator = allocator_with(context, True)
    for _ in range(EVENTS // 3 + 1):
        allocator.free(allocator.malloc(1000))
    start = time.perf_counter_ns()
    snapshot = allocator.snapshot()
    taken = time.perf_counter_ns() - start
    assert len(snapshot["device_traces"][0]) == EVENTS
    return taken / 1e6


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    off, plain, stacks = allocator_with(None, False), allocator_with(None, True), allocator_with("all", True)
    samples: dict[str, list[float]] = {"off": [], "on": [], "on with stacks": []}
    for _ in range(ROUNDS):
        for taken, allocator in zip(samples.values(), (off, plain, stacks), strict=True):
            taken.append(python_pair_ns(allocator.malloc, allocator.free, PAIRS))
    medians = {name: statistics.median(taken) for name, taken in samples.items()}
    figures = {
        **{f"pair_ns, history {name}": value for name, value in medians.items()},
        "on over off": medians["on"] / medians["off"],
        "with stacks over off": medians["on with stacks"] / medians["off"],
        "snapshot_ms of 100,000 events": min(snapshot_ms(None) for _ in range(3)),
        "snapshot_ms of 100,000 events with stacks": min(snapshot_ms("all") for _ in range(3)),
    }
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:44} {value:10.2f}")


if __name__ == "__main__":
    main()
