"""Dense placement on real memory with every byte checked, on several host streams.

    python tests/stress/dense_host.py [--seconds 600] [--streams 4] [--seed 1] [--settings S]

Every block is filled by its stream when it is allocated and compared by its stream right before it is freed; some are
compared on another stream too, which waits for the filling and is declared by `record_stream`. The program itself never
waits, so requests and frees are ahead of the streams. Small chunks and a tight limit cause many mappings. Exits with 0
if no byte was wrong.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from typing import Any

import numpy as np

import allotment

LIMIT = "192MiB"
FULL = 150 << 20
SIZES = (512, 5_000, 70_000, 1 << 20, 3 << 20, 5 << 20, 5 << 20, 9 << 20, 9 << 20, 20 << 20)
AHEAD = 60


class DenseStress:
    def __init__(self, settings: str, streams: int, seed: int) -> None:
        self.allocator = allotment.Allocator("host", settings=settings, limit=LIMIT)
        self.streams = [allotment.Stream(self.allocator) for _ in range(streams)]
        self.choose = random.Random(seed)
        self.blocks: list[tuple[int, int, Any, int]] = []
        self.live = self.filled = self.compared = self.refused = 0
        self.wrong: list[str] = []

    def words(self, address: int, size: int) -> Any:
        return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)

    def fill(self, address: int, size: int, value: int) -> None:
        self.words(address, size)[:] = value

    def compare(self, address: int, size: int, value: int) -> None:
        bad = int(np.count_nonzero(self.words(address, size) != value))
        if bad:
            self.wrong.append(f"{bad} of {size} bytes at {address:#x} are not {value}")

    def allocate(self) -> None:
        stream = self.choose.choice(self.streams)
        size = self.choose.choice(SIZES)
        try:
            address = self.allocator.malloc(size, stream)
        except allotment.OutOfMemoryError:
            self.refused += 1
            self.free(len(self.blocks) // 2)
            return
        value = self.choose.randrange(1, 256)
        stream.submit(self.fill, address, size, value)
        self.filled += 1
        if len(self.streams) > 1 and self.choose.random() < 0.3:
            other = self.choose.choice([one for one in self.streams if one is not stream])
            other.wait(stream.record())
            other.submit(self.compare, address, size, value)
            self.allocator.record_stream(address, other)
        self.blocks.append((address, size, stream, value))
        self.live += size

    def free(self, count: int) -> None:
        for _ in range(count):
            address, size, stream, value = self.blocks.pop(self.choose.randrange(len(self.blocks)))
            stream.submit(self.compare, address, size, value)
            self.compared += 1
            self.allocator.free(address)
            self.live -= size

    def step(self) -> None:
        if self.blocks and (self.live > FULL or self.choose.random() < 0.48):
            self.free(1)
        else:
            self.allocate()
        if self.choose.random() < 0.001:
            self.allocator.empty_cache()

    def synchronize(self) -> None:
        for stream in self.streams:
            stream.synchronize()

    def run(self, seconds: float = 0, steps: int = 0) -> dict[str, Any]:
        end = time.monotonic() + seconds
        done = 0
        while (done < steps or time.monotonic() < end) and not self.wrong:
            self.step()
            done += 1
            if done % AHEAD == 0:
                self.synchronize()
            if done % 500 == 0:
                self.allocator.inspection.check_invariants()
        self.free(len(self.blocks))
        self.synchronize()
        self.allocator.inspection.check_invariants()
        stats = self.allocator.stats()
        self.allocator.empty_cache()
        return {
            "steps": done, "filled": self.filled, "compared": self.compared, "refused": self.refused,
            "wrong": self.wrong, **{key: value for key, value in stats.items() if key.startswith("dense.")},
        }  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description="Every byte of every block watched, on host streams.")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="placement:dense,dense_grain:256")
    options = parser.parse_args()
    result = DenseStress(options.settings, options.streams, options.seed).run(options.seconds)
    print(json.dumps(result, indent=1))
    return 1 if result["wrong"] else 0


if __name__ == "__main__":
    sys.exit(main())
