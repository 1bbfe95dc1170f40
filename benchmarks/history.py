"""The cost of the history, in one run: python benchmarks/history.py [--json]

A malloc + free pair with history off, on without stacks, on with Python stacks, and both of these streamed to a file,
taken in turns; and the time of a snapshot with 100,000 events (goal: under 50 ms) and of writing it to a file.

Times are minima of several, and ratios those of the minima, because other programs on the machine only add time.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

import allotment
from allotment.lab.bench.run import python_pair_ns

ROUNDS = 200
PAIRS = 1_500
SNAPSHOTS = 7
EVENTS = 100_000


def allocator_with(context: str | None, enabled: bool, file: Path | None = None) -> allotment.Allocator:
    allocator = allotment.Allocator("sim:64GiB", settings="compat:newest")
    if file is not None:
        allocator.record_history("all", context, file=file)
    elif enabled:
        allocator.record_history("all", context, max_entries=EVENTS)
    return allocator


def milliseconds(work: Callable[[], object]) -> float:
    start = time.perf_counter_ns()
    made = work()
    taken = time.perf_counter_ns() - start
    del made  # not part of it
    return taken / 1e6


def snapshot_ms(context: str | None) -> tuple[float, float]:
    """Return the time of taking a snapshot, and of writing one to a file."""
    allocator = allocator_with(context, True)
    for _ in range(EVENTS // 3 + 1):
        allocator.free(allocator.malloc(1000))
    assert len(allocator.snapshot()["device_traces"][0]) == EVENTS
    with TemporaryDirectory() as folder:
        path = Path(folder) / "snapshot.pickle"
        return (
            min(milliseconds(allocator.snapshot) for _ in range(SNAPSHOTS)),
            min(milliseconds(lambda: allocator.history.dump_snapshot(path)) for _ in range(SNAPSHOTS)),
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", action="store_true")
    as_json = parser.parse_args().json
    with TemporaryDirectory() as folder:
        measured = {
            "off": allocator_with(None, False),
            "on": allocator_with(None, True),
            "on with stacks": allocator_with("all", True),
            "to a file": allocator_with(None, True, Path(folder) / "plain"),
            "to a file with stacks": allocator_with("all", True, Path(folder) / "stacks"),
        }
        least = dict.fromkeys(measured, math.inf)
        for _ in range(ROUNDS):
            for name, allocator in measured.items():
                least[name] = min(least[name], python_pair_ns(allocator.malloc, allocator.free, PAIRS))
        for allocator in measured.values():
            allocator.close()
    (taken, written), (taken_with_stacks, written_with_stacks) = snapshot_ms(None), snapshot_ms("all")
    figures = {
        **{f"pair_ns, history {name}": value for name, value in least.items()},
        "on over off": least["on"] / least["off"],
        "with stacks over off": least["on with stacks"] / least["off"],
        "to a file over off": least["to a file"] / least["off"],
        "to a file with stacks over off": least["to a file with stacks"] / least["off"],
        "snapshot_ms of 100,000 events": taken,
        "snapshot_ms of 100,000 events with stacks": taken_with_stacks,
        "dump_snapshot_ms of 100,000 events": written,
        "dump_snapshot_ms of 100,000 events with stacks": written_with_stacks,
    }
    if as_json:
        print(json.dumps(figures))
        return
    for name, value in figures.items():
        print(f"{name:46} {value:10.2f}")


if __name__ == "__main__":
    main()
