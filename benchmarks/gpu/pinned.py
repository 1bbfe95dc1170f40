"""Pinned memory: the cost of a pair next to CuPy's and PyTorch's, and how much a data loader's pattern pins.

    python benchmarks/gpu/pinned.py [--out FILE]

A pair allocates memory and frees it, in turns with the others, so that a slow moment affects all of them:

    ours, torch / tight     `PinnedAllocator.malloc` and `free`, no stream named
    ours, with a stream     the same with a stream named at the free, which costs an event
    ours under CuPy         `cupy.cuda.alloc_pinned_memory` on our memory
    CuPy                    the same on CuPy's PinnedMemoryPool
    PyTorch                 `torch.empty(size, pin_memory=True)`

The pattern: batches of images and labels of changing sizes, a few of them alive at a time, each copied to the device
and dropped while its copy may be in progress. Bytes pinned in both modes, and by PyTorch for the same sizes.

The goal is that a pair is not slower than CuPy's or PyTorch's. Exits with 1 if it is.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import random
import sys
import time
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from latency import Figure, in_quiet

import allotment
from allotment._devices.cuda.device import CudaDevice

SIZE = 4096
ALIVE = 6
BATCHES = 300
MIB = 1 << 20


def pairs(device: CudaDevice) -> dict[str, Callable[[int], None]]:
    found: dict[str, Callable[[int], None]] = {}
    for mode in ("torch", "tight"):
        found[f"ours, {mode}"] = pair_of(allotment.PinnedAllocator(device, mode=mode))
    found["ours, with a stream"] = pair_of(allotment.PinnedAllocator(device), [device.create_stream()])
    try:
        import cupy

        from allotment import cupy as adapter

        pool, allocator = cupy.cuda.PinnedMemoryPool(), allotment.Allocator(device)

        def theirs(count: int) -> None:
            cupy.cuda.set_pinned_memory_allocator(pool.malloc)
            loop(cupy.cuda.alloc_pinned_memory, count)
            cupy.cuda.set_pinned_memory_allocator(cupy.get_default_pinned_memory_pool().malloc)

        def under_cupy(count: int) -> None:
            adapter.install(allocator)
            loop(cupy.cuda.alloc_pinned_memory, count)
            adapter.uninstall()

        found["CuPy"], found["ours under CuPy"] = theirs, under_cupy
    except Exception as error:
        print(f"without CuPy: {error}", file=sys.stderr)
    try:
        import torch

        def of_torch(count: int) -> None:
            empty, kind = torch.empty, torch.uint8
            for _ in range(count):
                empty(SIZE, dtype=kind, pin_memory=True)

        of_torch(1)
        found["PyTorch"] = of_torch
    except Exception as error:
        print(f"without PyTorch: {error}", file=sys.stderr)
    return found


def pair_of(pinned: allotment.PinnedAllocator, streams: Any = ()) -> Callable[[int], None]:
    def run(count: int) -> None:
        malloc, free = pinned.malloc, pinned.free
        if streams:
            for _ in range(count):
                free(malloc(SIZE), streams)
        else:
            for _ in range(count):
                free(malloc(SIZE))

    return run


def loop(allocate: Callable[[int], Any], count: int) -> None:
    for _ in range(count):
        allocate(SIZE)


def measure(chosen: dict[str, Callable[[int], None]], rounds: int, count: int) -> dict[str, Figure]:
    samples: dict[str, list[float]] = {name: [] for name in chosen}
    for turn in range(rounds + 1):
        for name, run in chosen.items():
            run(100)
            start = time.perf_counter_ns()
            run(count)
            if turn:
                samples[name].append((time.perf_counter_ns() - start) / count)
    return {name: Figure.of(taken) for name, taken in samples.items()}


def sizes() -> list[list[int]]:
    """For each batch: images of changing sizes, and labels."""
    draw = random.Random(3)
    return [[draw.randrange(5 * MIB, 40 * MIB), draw.randrange(1, 64) * 1024] for _ in range(BATCHES)]


def pattern(device: CudaDevice, mode: str) -> dict[str, Any]:
    """Run the data loader on our memory; check what arrives on the device."""
    allocator = allotment.Allocator(device)
    stream = allotment.Stream(allocator)
    place = allocator.empty(64 * MIB, stream)
    wrong = 0
    with allotment.PinnedAllocator(device, mode=mode) as pinned:
        alive: list[list[int]] = []
        for number, batch in enumerate(sizes()):
            blocks = [pinned.malloc(size) for size in batch]
            mark = number % 251
            for address, size in zip(blocks, batch, strict=True):
                ctypes.memset(address, mark, 64)
                ctypes.memset(address + size - 64, mark, 64)
            allocator.copy(place, blocks[0], batch[0], stream)
            allocator.copy(place.address + batch[0], blocks[1], batch[1], stream)
            alive.append(blocks)
            if len(alive) > ALIVE:
                for address in alive.pop(0):
                    pinned.free(address, [stream])
            if number % 10 == 0:
                stream.synchronize()
                for start in (0, batch[0] - 64, batch[0], batch[0] + batch[1] - 64):
                    wrong += device.copy_to_host(place.address + start, 64) != bytes([mark]) * 64
        pinned_bytes = pinned.stats()["allocated_bytes.peak"]
        for blocks in alive:
            for address in blocks:
                pinned.free(address, [stream])
        stream.synchronize()
    return {"pinned_bytes": pinned_bytes, "wrong": wrong}


def pattern_of_torch() -> int | None:
    """Return the bytes that PyTorch pins for the same sizes, by its own count."""
    try:
        import torch

        torch.cuda.host_memory_stats()
    except Exception:
        return None
    before = torch.cuda.host_memory_stats().get("allocated_bytes.current", 0)
    torch.cuda.reset_peak_host_memory_stats()
    alive: list[Any] = []
    for batch in sizes():
        alive.append([torch.empty(size, dtype=torch.uint8, pin_memory=True) for size in batch])
        if len(alive) > ALIVE:
            alive.pop(0)
    return torch.cuda.host_memory_stats().get("allocated_bytes.peak", 0) - before


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=5_000, help="pairs in a round")
    options = parser.parse_args()
    device = CudaDevice(0)
    chosen = pairs(device)
    figures = in_quiet(lambda: measure(chosen, options.rounds, options.count))
    print(f"{device.model}: a pair of {SIZE} bytes, ns, median (least..most) of {options.rounds} rounds\n")
    for name, figure in figures.items():
        print(f"| {name} | {figure.median:,.0f} ({figure.least:,.0f}..{figure.most:,.0f}) |")
    patterns = {mode: pattern(device, mode) for mode in ("torch", "tight")}
    patterns["PyTorch"] = {"pinned_bytes": pattern_of_torch(), "wrong": 0}
    alive = max(sum(map(sum, sizes()[at : at + ALIVE + 1])) for at in range(BATCHES))
    print(f"\na data loader's pattern, {alive / MIB:.0f} MiB alive at most:")
    for name, found in patterns.items():
        if found["pinned_bytes"]:
            print(f"| {name} | {found['pinned_bytes'] / MIB:.0f} MiB pinned | {found['wrong']} wrong |")
    peers = [figures[name].median for name in ("CuPy", "PyTorch") if name in figures]
    reached = {
        name: all(figures[name].median <= peer for peer in peers)
        for name in ("ours, torch", "ours, tight", "ours under CuPy")
        if name in figures
    }
    print(f"\nnot slower than either: {reached}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        result = {"pairs": {name: asdict(figure) for name, figure in figures.items()}, "patterns": patterns}
        options.out.write_text(json.dumps(result | {"reached": reached}, indent=1) + "\n")
    return 0 if all(reached.values()) and not any(found["wrong"] for found in patterns.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
