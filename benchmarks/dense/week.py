"""The allocator's own memory over a simulated week: repeats a recording's requests in other sizes.

    python benchmarks/dense/week.py SNAPSHOT_OR_FOLDER... [--requests 100000000] [--settings S] [--seed 1]

Blocks that a recording never frees are allocated once and stay. Everything else is requested in each cycle, with sizes
multiplied by a factor that each cycle draws from 0.6 to 1.2, and in half of the cycles by one more for each block.
Prints, after parts of the requests: bytes that the C library has handed out since the engine was created (chunks,
views, tiles, clocks and everything else of the engine), chunks, views, and the most memory reserved on the device.
"""

from __future__ import annotations

import argparse
import ctypes
import time
from pathlib import Path
from typing import Any

import numpy as np
from compare import DENSE, SETTINGS, snapshots

from allotment._settings import settings_of
from allotment.lab.replay.loop import Replay
from allotment.lab.replay.records import Kind
from allotment.lab.replay.run import Recording, read_recording

CAPACITY = 1 << 40
SMALLEST_CHANGED = 64 << 10
SHOWN = (0.01, 0.1, 0.25, 0.5, 0.75, 1.0)


class HeapFigures(ctypes.Structure):
    """The result of the C library's `mallinfo2`."""

    _fields_ = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks")
    ] + [("keepcost", ctypes.c_size_t)]


def heap_bytes() -> int:
    function = ctypes.CDLL(None).mallinfo2
    function.restype = HeapFigures
    figures = function()
    return int(figures.uordblks + figures.hblkhd)


class Week:
    """One engine that gets the requests of a recording in cycles."""

    def __init__(self, recording: Recording, settings: str, seed: int) -> None:
        calls, _ = recording.all_calls
        calls = calls[(calls["block"] >= 0) | (calls["kind"] == Kind.EMPTY_CACHE)]
        ends = np.isin(calls["kind"], (Kind.FREE, Kind.FREE_SHARED))
        blocks = int(calls["block"].max()) + 1
        is_freed = np.zeros(blocks + 1, dtype=bool)  # the last one stands for calls without a block
        is_freed[calls["block"][ends]] = True
        is_freed[blocks] = True
        again = is_freed[calls["block"]]
        pools = np.array(recording.pool_ids, dtype=np.uint64).reshape(-1, 2)
        self.run = Replay(settings_of(settings, compat=recording.compat), CAPACITY, blocks, pools)
        self.run.run(calls[~again], background=True)
        self.calls = calls[again].copy()
        place = np.cumsum(again) - 1
        waits = self.calls["kind"] == Kind.FREE_SHARED
        due = place[np.minimum(self.calls["due"][waits], len(calls) - 1)]
        # Events finish while a request is made: none remains after the last one.
        last = int(np.flatnonzero(self.calls["kind"] == Kind.MALLOC)[-1])
        self.calls["due"][waits] = np.where(np.flatnonzero(waits) < last, np.minimum(due, last), 0)
        self.sizes = self.calls["size"].copy()
        self.changes = (self.calls["kind"] == Kind.MALLOC) & (self.sizes >= SMALLEST_CHANGED)
        self.requests_per_cycle = int(np.count_nonzero(self.calls["kind"] == Kind.MALLOC))
        self.draw = np.random.default_rng(seed)
        self.requests = 0

    def cycle(self) -> None:
        factor: Any = self.draw.uniform(0.6, 1.2)
        if self.draw.random() < 0.5:
            factor = factor * self.draw.uniform(0.9, 1.1, size=int(np.count_nonzero(self.changes)))
        self.calls["size"][self.changes] = np.maximum(self.sizes[self.changes] * factor, 1).astype(np.uint64)
        self.run.run(self.calls)
        self.requests += self.requests_per_cycle

    def figures(self, heap_before: int) -> tuple[int, int, int, int]:
        driver = self.run.driver()
        reserved = int(self.run.figures()["peak_reserved_bytes"])
        return heap_bytes() - heap_before, int(driver["chunks"]), int(driver["views"]), reserved


def main() -> None:
    parser = argparse.ArgumentParser(description="The allocator's own memory over a simulated week.")
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--requests", type=int, default=100_000_000)
    parser.add_argument("--settings", default=SETTINGS[DENSE])
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    titles = ["recording", "million requests", "cycles", "refused", "heap KiB", "chunks", "views", "peak reserved MiB"]
    print("| " + " | ".join([*titles, "minutes"]) + " |\n|" + "---|" * (len(titles) + 1))
    for file in snapshots(arguments.places):
        recording = read_recording(file)
        before, began = heap_bytes(), time.monotonic()
        week = Week(recording, arguments.settings, arguments.seed)
        cycles = 0
        for share in SHOWN:
            while week.requests < share * arguments.requests:
                week.cycle()
                cycles += 1
            heap, chunks, views, reserved = week.figures(before)
            cells = [file.name.split(".pickle")[0], f"{week.requests / 1e6:.1f}", cycles, week.run.refused]
            cells += [heap >> 10, chunks, views, reserved >> 20, f"{(time.monotonic() - began) / 60:.1f}"]
            print("| " + " | ".join(map(str, cells)) + " |", flush=True)


if __name__ == "__main__":
    main()
