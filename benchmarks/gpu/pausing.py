"""Pause and resume on a GPU: 1 GiB a hundred times and 10 GiB ten times, next to the bus; and a PyTorch model.

    python benchmarks/gpu/pausing.py [--torch]

Prints a JSON object for each part: seconds, GB/s, the device's free memory before, asleep and after, the drift of free
device memory and of this process over all times, and in which of them free device memory changed by how much. `--torch`
adds a model whose outputs are compared bit by bit, a captured graph that is replayed after, and (with transformers) a
GPT-2 that is trained under the sanitizer: nothing must be reported.
"""

from __future__ import annotations

import ctypes
import itertools
import json
import os
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import allotment

GIB = 1 << 30


def resident() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def asleep_and_awake(size: int, times: int) -> dict[str, Any]:
    """A tag of eight blocks, with contents that are compared in the end."""
    allocator = allotment.Allocator("cuda:0")
    part = size // 8
    with allotment.tag("weights"):
        blocks = [allocator.malloc(part) for _ in range(8)]
    stream = allotment.Stream(allocator)
    patterns = [os.urandom(1 << 20) * (part >> 20) for _ in range(8)]
    for block, pattern in zip(blocks, patterns, strict=True):
        allocator.copy(block, pattern, part, stream)
    stream.synchronize()
    awake_free = allocator.memory_info()[0]
    pauses, resumes, rises, free_after, resident_after = [], [], [], [], []
    for _ in range(times):
        begin = time.perf_counter()
        allocator.pause("weights")
        pauses.append(time.perf_counter() - begin)
        rises.append(allocator.memory_info()[0] - awake_free)
        begin = time.perf_counter()
        allocator.resume("weights")
        resumes.append(time.perf_counter() - begin)
        free_after.append(allocator.memory_info()[0])
        resident_after.append(resident())
    right = True
    for block, pattern in zip(blocks, patterns, strict=True):
        back = bytearray(part)
        allocator.copy(back, block, part, stream)
        stream.synchronize()
        right &= bytes(back) == pattern
    allocator.inspection.check_invariants()
    return {
        "bytes": size,
        "times": times,
        "contents_right": right,
        "free_rises_by": [min(rises), max(rises)],
        "pause_s": statistics.median(pauses),
        "resume_s": statistics.median(resumes),
        "pause_GB_per_s": size / statistics.median(pauses) / 1e9,
        "resume_GB_per_s": size / statistics.median(resumes) / 1e9,
        "device_drift_bytes": free_after[-1] - free_after[0],
        "device_free_changes": {
            i: now - before for i, (before, now) in enumerate(itertools.pairwise(free_after), 2) if now != before
        },
        "resident_drift_bytes": resident_after[-1] - resident_after[min(9, times - 1)],
    }


def bus(size: int = GIB) -> dict[str, float]:
    """Copies from and to pinned memory, for comparison."""
    allocator = allotment.Allocator("cuda:0")
    pinned = allotment.PinnedAllocator("cuda:0")
    host, block, stream = pinned.empty(size), allocator.malloc(size), allotment.Stream(allocator)
    found = {}
    for name, target, source in (("to_device", block, host), ("to_host", host, block)):
        best = float("inf")
        for _ in range(5):
            begin = time.perf_counter()
            allocator.copy(target, source, size, stream)
            stream.synchronize()
            best = min(best, time.perf_counter() - begin)
        found[f"{name}_GB_per_s"] = size / best / 1e9
    return found


def with_torch() -> dict[str, Any]:
    """A model answers the same bits before and after, also by a graph that was captured before."""
    import allotment.torch

    allotment.torch.install(patch=True)
    import torch

    torch.manual_seed(1)
    with allotment.tag("model"):
        layers = [torch.nn.Linear(4096, 4096) for _ in range(8)]
        model = torch.nn.Sequential(*layers).cuda().eval()
    given = torch.randn(64, 4096, device="cuda")
    with torch.no_grad():
        before = model(given).clone()
        model(given)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            out = model(given)
        graph.replay()
        torch.cuda.synchronize()
        by_graph = out.clone()
        free = torch.cuda.mem_get_info()[0]
        released = allotment.torch.pause(model)
        rise = torch.cuda.mem_get_info()[0] - free
        allotment.torch.resume(model)
        after = model(given)
        graph.replay()
        torch.cuda.synchronize()
    return {
        "released": released,
        "free_rises_by": rise,
        "same_bits": torch.equal(before, after),
        "same_bits_by_graph": torch.equal(by_graph, out),
    }


def training_with_torch() -> dict[str, Any]:
    """GPT-2, 30 steps of changing length: a program in order."""
    from gpt2_training import train

    import allotment.torch
    from allotment.torch import memory

    with allotment.torch.sanitize() as sanitizers:
        losses = train(memory)["losses"]
    reports = [report for sanitizer in sanitizers.values() for report in sanitizer.reports]
    return {"steps": len(losses), "last_loss": losses[-1], "reports": [str(report) for report in reports]}


if __name__ == "__main__":
    ctypes.CDLL(None).malloc_trim(0)
    print(json.dumps({"bus": bus()}), flush=True)
    print(json.dumps({"1 GiB": asleep_and_awake(GIB, 100)}), flush=True)
    print(json.dumps({"10 GiB": asleep_and_awake(10 * GIB, 10)}), flush=True)
    if "--torch" in sys.argv:
        print(json.dumps({"torch": with_torch()}), flush=True)
        print(json.dumps({"training": training_with_torch()}), flush=True)
