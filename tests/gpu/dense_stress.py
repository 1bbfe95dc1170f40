"""Dense placement on a GPU with every byte watched: is memory ever handed out while somebody still works with it?

    python tests/gpu/dense_stress.py [--seconds N] [--graphs] [--renew-streams] [--settings S] [--limit 12GiB]

Needs CuPy. Every block is filled by a kernel on its stream when it is allocated, each 8 bytes with a value of their
own, and compared by a kernel on its stream right before it is freed. Some blocks are also compared on other streams,
which wait for the filling on the GPU, and are declared to the allocator by `record_stream`. The host hardly ever
waits, so frees and requests are far ahead of the kernels. `dense_grain:256` makes chunks small and mappings many.
With --graphs, graphs that were captured in private pools run beside it, and compare their own memory at each launch.
With --renew-streams, a stream is destroyed now and then, when all blocks that it used are freed, and a new one takes
its place: memory that is still cached was last used on a stream that no longer exists. Only without it do streams wait
for each other.

Ends with 1 if a single word was wrong, or if nothing was stitched.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from dataclasses import dataclass, field
from typing import Any

import cupy

import allotment

KERNELS = r"""
extern "C" __global__ void fill(unsigned long long* words, unsigned long long count, unsigned long long value) {
    unsigned long long i = blockIdx.x * (unsigned long long) blockDim.x + threadIdx.x;
    for (; i < count; i += (unsigned long long) gridDim.x * blockDim.x) words[i] = value ^ i;
}
extern "C" __global__ void compare(const unsigned long long* words, unsigned long long count, unsigned long long value,
                                   unsigned long long* wrong) {
    unsigned long long i = blockIdx.x * (unsigned long long) blockDim.x + threadIdx.x;
    unsigned long long mine = 0;
    for (; i < count; i += (unsigned long long) gridDim.x * blockDim.x) mine += words[i] != (value ^ i);
    if (mine) atomicAdd(wrong, mine);
}
"""
THREADS = 256
MOST_GROUPS = 1024
SIZES = [512, 4096, 70_000, 1 << 20, 3 << 20, 5 << 20, 5 << 20, 12 << 20, 24 << 20, 24 << 20, 60 << 20, 150 << 20]
AHEAD = 400
"""Steps after which the host waits for the GPU once, so that the queue of kernels stays bounded."""


@dataclass(eq=False)
class Block:
    address: int
    size: int
    stream: Any
    value: int
    users: list[Any] = field(default_factory=list)


class Stress:
    def __init__(self, settings: str, limit: str, streams: int, seed: int) -> None:
        module = cupy.RawModule(code=KERNELS)
        self.fill_kernel, self.compare_kernel = module.get_function("fill"), module.get_function("compare")
        self.allocator = allotment.Allocator("cuda:0", settings=settings, limit=limit)
        self.limit = self.allocator.limit
        self.streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(streams)]
        self.wrong = cupy.zeros(1, dtype=cupy.uint64)
        self.choose = random.Random(seed)
        self.blocks: list[Block] = []
        self.live = self.filled = self.compared = self.refused = self.launches = self.renewed = 0
        self.favourites = [self.choose.choice(SIZES) for _ in range(5)]
        self.graphs: list[tuple[Any, Any, Any]] = []
        cupy.cuda.Device().synchronize()

    def launch(self, kernel: Any, stream: Any, address: int, size: int, *rest: Any) -> None:
        words = size // 8
        groups = max(1, min(MOST_GROUPS, -(-words // THREADS)))
        pointer = cupy.uint64(address)
        with stream:
            kernel((groups,), (THREADS,), (pointer, cupy.uint64(words), *rest))

    def fill(self, block: Block) -> None:
        self.launch(self.fill_kernel, block.stream, block.address, block.size, cupy.uint64(block.value))
        self.filled += 1

    def compare(self, block: Block, stream: Any) -> None:
        value = cupy.uint64(block.value)
        self.launch(self.compare_kernel, stream, block.address, block.size, value, self.wrong)
        self.compared += 1

    def allocate(self) -> None:
        draw = self.choose.random()
        size = self.choose.choice(self.favourites) if draw < 0.6 else self.choose.randrange(8, 64 << 20) // 8 * 8
        stream = self.choose.choice(self.streams)
        try:
            address = self.allocator.malloc(size, stream.ptr)
        except allotment.OutOfMemoryError:
            self.refused += 1
            self.free_some(len(self.blocks) // 2)
            return
        block = Block(address, size, stream, self.choose.getrandbits(63))
        self.fill(block)
        if self.choose.random() < 0.3:
            self.use_elsewhere(block)
        self.blocks.append(block)
        self.live += size

    def use_elsewhere(self, block: Block) -> None:
        other = self.choose.choice([stream for stream in self.streams if stream is not block.stream])
        other.wait_event(block.stream.record())
        self.compare(block, other)
        self.allocator.record_stream(block.address, other.ptr)
        block.users.append(other)

    def free_some(self, count: int) -> None:
        for _ in range(count):
            self.free(self.choose.choice(self.blocks))

    def free(self, block: Block) -> None:
        self.blocks.remove(block)
        self.compare(block, block.stream)
        self.allocator.free(block.address)
        self.live -= block.size

    def renew_stream(self) -> None:
        """Free what a stream uses, and destroy it; its work may still run."""
        at = self.choose.randrange(len(self.streams))
        stream = self.streams[at]
        for block in [block for block in self.blocks if stream in (block.stream, *block.users)]:
            self.free(block)
        self.streams[at] = cupy.cuda.Stream(non_blocking=True)
        self.renewed += 1

    def capture(self) -> None:
        """A graph that fills two blocks of its own pool, and compares them, whenever it is launched."""
        stream = cupy.cuda.Stream(non_blocking=True)
        pool = self.allocator.pool()
        with pool:
            stream.begin_capture(cupy.cuda.runtime.streamCaptureModeRelaxed)
            for round_ in range(6):
                size = self.choose.choice(SIZES[:9])
                block = Block(self.allocator.malloc(size, stream.ptr), size, stream, self.choose.getrandbits(63))
                self.fill(block)
                self.compare(block, stream)
                if round_ % 2:
                    self.allocator.free(block.address)
            graph = stream.end_capture()
        self.graphs.append((stream, pool, graph))  # the last goes first: no stream before the memory it used

    def step(self) -> None:
        if self.graphs and self.choose.random() < 0.2:
            stream, _, graph = self.choose.choice(self.graphs)
            graph.launch(stream)
            self.launches += 1
        full = self.live > self.limit * 0.85
        if self.blocks and (full or self.choose.random() < 0.48):
            self.free_some(1)
        else:
            self.allocate()
        if self.choose.random() < 0.0005:
            self.allocator.empty_cache()
        if self.choose.random() < 0.002:
            self.favourites = [self.choose.choice(SIZES) for _ in range(5)]

    def run(self, seconds: float, graphs: bool, renew: bool) -> dict[str, Any]:
        end = time.monotonic() + seconds
        steps = 0
        while time.monotonic() < end:
            self.step()
            steps += 1
            if graphs and steps % 2000 == 1 and len(self.graphs) < 8:
                self.capture()
            if renew and steps % 500 == 0:
                self.renew_stream()
            if steps % AHEAD == 0:
                cupy.cuda.Device().synchronize()
            if steps % 5000 == 0:
                self.allocator.inspection.check_invariants()
        self.free_some(len(self.blocks))
        cupy.cuda.Device().synchronize()
        self.allocator.inspection.check_invariants()
        stats = self.allocator.stats()
        return {
            "steps": steps,
            "filled": self.filled,
            "compared": self.compared,
            "graph_launches": self.launches,
            "streams_destroyed": self.renewed,
            "wrong_words": int(self.wrong.get()[0]),
            "refused": self.refused,
            "peak_reserved_MiB": stats["reserved_bytes.all.peak"] >> 20,
            "peak_active_MiB": stats["active_bytes.all.peak"] >> 20,
            **{key: value for key, value in stats.items() if key.startswith("dense.")},
            "gpu": cupy.cuda.runtime.getDeviceProperties(0)["name"].decode(),
        }


def main() -> None:
    parser = argparse.ArgumentParser(description="Every block filled and compared on the GPU, on several streams.")
    parser.add_argument("--seconds", type=float, default=180)
    parser.add_argument("--graphs", action="store_true")
    parser.add_argument("--renew-streams", action="store_true")
    parser.add_argument("--settings", default="placement:dense,dense_grain:256")
    parser.add_argument("--limit", default="12GiB")
    parser.add_argument("--streams", type=int, default=4)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    stress = Stress(arguments.settings, arguments.limit, arguments.streams, arguments.seed)
    stress.allocator._note_streams(not arguments.renew_streams)
    result = stress.run(arguments.seconds, arguments.graphs, arguments.renew_streams)
    print(json.dumps(result))
    stitched = result.get("dense.stitches", 1) > 0 or "dense_views:1" in arguments.settings
    sys.exit(result["wrong_words"] != 0 or not stitched)


if __name__ == "__main__":
    main()
