"""Results and costs of controlling memory, without a GPU: `python benchmarks/command/host.py [PART ...]`.

sleep       1 GiB of weights asleep and awake 100 times on the host: contents, drift, seconds, GB/s
stolen      another allocator takes the memory meanwhile: the resume fails without any change, and succeeds later
threads     8 threads on a full device, for a while: requests served and lost, deadlocks
soft        a soft limit over a churn on a simulated device: how far it was passed
sanitizer   a pair of malloc and free with and without
"""

from __future__ import annotations

import gc
import json
import os
import random
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import allotment
from allotment import relief

MIB, GIB = 1 << 20, 1 << 30


def resident() -> int:
    """Return the resident bytes of this process."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def sleep(size: int = GIB, times: int = 100) -> dict[str, Any]:
    """Sleep and wake; nothing may grow from the tenth time to the last."""
    allocator = allotment.Allocator("host")
    with allotment.tag("weights"):
        parts = [allocator.array(size // 8 // 4, "int32") for _ in range(8)]
    for number, part in enumerate(parts):
        part[:] = np.arange(part.size, dtype="int32") * (number + 1)
    sums = [int(part.sum(dtype="int64")) for part in parts]
    asleep, awake, released, after = [], [], set(), []
    for _ in range(times):
        begin = time.perf_counter()
        released.add(allocator.pause("weights"))
        middle = time.perf_counter()
        allocator.resume("weights")
        awake.append(time.perf_counter() - middle)
        asleep.append(middle - begin)
        gc.collect()
        after.append(resident())
    right = sums == [int(part.sum(dtype="int64")) for part in parts]
    allocator.inspection.check_invariants()
    return {
        "bytes": size,
        "times": times,
        "contents_right": right,
        "released_each_time": sorted(released),
        "pause_s": sorted(asleep)[times // 2],
        "resume_s": sorted(awake)[times // 2],
        "resume_GB_per_s": size / sorted(awake)[times // 2] / 1e9,
        "resident_drift_bytes": after[-1] - after[min(9, times - 1)],
        "reserved": allocator.stats()["reserved_bytes.all.current"],
    }


def stolen() -> dict[str, Any]:
    """Another allocator takes the memory while it sleeps."""
    device = allotment.SimulatedDevice(10 * GIB)
    allocator, thief = allotment.Allocator(device), allotment.Allocator(device)
    with allotment.tag("weights"):
        for _ in range(60):
            allocator.malloc(100 * MIB)
    allocator.pause("weights", keep="nothing")
    taken = thief.malloc(8 * GIB)
    used, failed = device.used, 0
    for _ in range(10):
        try:
            allocator.resume("weights")
        except allotment.OutOfMemoryError:
            failed += 1
        allocator.inspection.check_invariants()
    unchanged = device.used == used
    thief.free(taken)
    thief.empty_cache()
    allocator.resume("weights")
    allocator.inspection.check_invariants()
    return {"failed": failed, "device_unchanged": unchanged, "awake_after": allocator.paused() == set()}


def threads(seconds: float = 60.0) -> dict[str, Any]:
    """Eight threads, each of which requests a third of the device again and again."""
    allocator = allotment.Allocator("sim:60MiB")
    allocator.on_out_of_memory(relief.wait(allocator, seconds=30), tries=1_000_000)
    end = time.monotonic() + seconds
    served, lost = [0] * 8, []

    def work(number: int) -> None:
        draw = random.Random(number)
        while time.monotonic() < end:
            try:
                address = allocator.malloc(draw.randint(11, 20) * MIB)
            except allotment.OutOfMemoryError as error:
                lost.append(error)
                continue
            served[number] += 1
            if draw.random() < 0.1:
                time.sleep(0.0005)
            allocator.free(address)

    workers = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(8)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join(seconds + 60)
    stuck = sum(worker.is_alive() for worker in workers)
    allocator.inspection.check_invariants()
    return {
        "seconds": seconds,
        "served": sum(served),
        "least_of_a_thread": min(served),
        "lost": len(lost),
        "stuck": stuck,
    }


class Churn:
    """In use is up to half of a soft limit, in all sizes and on two streams; each step checks reserved memory."""

    def __init__(self, settings: str, limit: int) -> None:
        self.allocator = allotment.Allocator("sim:8GiB", settings=settings)
        self.allocator.set_limit(None, soft=limit)
        self.limit, self.draw = limit, random.Random(1)
        self.live: dict[int, int] = {}
        self.held = self.most = self.steps = 0

    def step(self) -> None:
        while self.live and (self.held > 0.5 * self.limit or self.draw.random() < 0.45):
            address = self.draw.choice(list(self.live)) if len(self.live) < 64 else next(iter(self.live))
            self.allocator.free(address)
            self.held -= self.live.pop(address)
        size = int(MIB * 2 ** self.draw.uniform(-6, 7))
        self.live[self.allocator.malloc(size, self.draw.choice((0, 7)))] = size
        self.held += size
        self.most = max(self.most, self.allocator.stats()["reserved_bytes.all.current"])
        self.steps += 1


def soft(seconds: float = 600.0) -> dict[str, Any]:
    """Each placement takes a step in turn, all of them over the whole time."""
    churns = {name: Churn(name, 2 * GIB) for name in ("", "expandable_segments:True", "placement:dense")}
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        for churn in churns.values():
            churn.step()
    for churn in churns.values():
        churn.allocator.inspection.check_invariants()
    return {
        name or "plain": {"seconds": seconds, "steps": churn.steps, "most_over_limit": churn.most / churn.limit}
        for name, churn in churns.items()
    }


def sanitizer(pairs: int = 20_000) -> dict[str, Any]:
    """Return the microseconds of a pair, on the host."""
    found = {}
    for name, options in (("off", {}), ("on", {"sanitize": True})):
        allocator = allotment.Allocator("host", **options)
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            for _ in range(pairs if name == "off" else pairs // 20):
                allocator.free(allocator.malloc(4096))
            best = min(best, (time.perf_counter() - begin) / (pairs if name == "off" else pairs // 20))
        found[name] = best * 1e6
        allocator.close()
    return {"pair_us": found}


PARTS = {part.__name__: part for part in (sleep, stolen, threads, soft, sanitizer)}

if __name__ == "__main__":
    for wanted in sys.argv[1:] or PARTS:
        name, *numbers = wanted.split("=")
        print(json.dumps({name: PARTS[name](*(float(number) for number in numbers))}), flush=True)
