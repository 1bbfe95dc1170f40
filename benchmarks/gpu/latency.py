"""The cost of a malloc and free on a GPU, ours next to every installed allocator: medians and spread of one run.

    python benchmarks/gpu/latency.py [--out FILE]

Two figures for each, called from Python, with everything in the cache after the first round:

    pair          free(malloc(1000)), again and again
    replacement   one of 256 live blocks, chosen at random, is freed and another size is requested All allocators of one
    process are measured in turns, so that a slow moment affects all of them. PyTorch's asynchronous backend excludes
    its native one, so it is measured in a separate process, again beside ours. A second thread is alive
throughout, because locks are cheaper without one, and the garbage collector is off.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

from allotment import Allocator, AllotmentError
from allotment._devices.cuda.device import CudaDevice
from allotment.lab.bench.hot_path import CPairs, EmptyAllocator

BLOCK = 1_000
LIVE = 256
SIZES = (512, 2_000, 10_000, 60_000, 300_000, 1_000_000, 3_000_000)
GOAL = 8.0
OURS = "allotment"
ASYNC_TORCH = "--async-torch"


@dataclass(frozen=True)
class Contender:
    """An allocator: the result of `malloc` is passed to `free`, or frees itself when it is dropped."""

    name: str
    malloc: Callable[[int], Any]
    free: Callable[[Any], object]


@dataclass(frozen=True)
class Figure:
    """Nanoseconds over several rounds."""

    median: float
    least: float
    most: float

    @staticmethod
    def of(samples: list[float]) -> Figure:
        return Figure(statistics.median(samples), min(samples), max(samples))


# The contenders.


def ours() -> Contender:
    allocator = Allocator("cuda:0", settings="compat:2.11")
    return Contender(OURS, allocator.malloc, allocator.free)


def ours_expandable() -> Contender:
    allocator = Allocator("cuda:0", settings="compat:2.11,expandable_segments:True")
    return Contender("allotment, expandable segments", allocator.malloc, allocator.free)


def nothing() -> Contender:
    empty = EmptyAllocator()
    return Contender("two empty calls", empty.malloc, empty.free)


def torch_native() -> Contender:
    torch = import_module("torch")
    torch.empty(1, device="cuda")
    allocate, delete = torch._C._cuda_cudaCachingAllocator_raw_alloc, torch._C._cuda_cudaCachingAllocator_raw_delete
    name = f"PyTorch {torch.__version__}, {torch.cuda.get_allocator_backend()}"
    return Contender(name, lambda size: allocate(size, 0), delete)


def cupy_pool(kind: str) -> Contender:
    cupy = import_module("cupy")
    pool = getattr(cupy.cuda, kind)()
    return Contender(f"CuPy {cupy.__version__}, {kind}", pool.malloc, lambda block: None)


def rmm_pool() -> Contender:
    rmm = import_module("rmm")
    pool = rmm.mr.PoolMemoryResource(rmm.mr.CudaMemoryResource(), initial_pool_size=1 << 30)
    return Contender(
        f"RMM {rmm.__version__}, PoolMemoryResource",
        lambda size: (pool.allocate(size), size),
        lambda block: pool.deallocate(*block),
    )


def contenders(makers: list[Callable[[], Contender]]) -> tuple[list[Contender], dict[str, str]]:
    """Return those that can be measured here, and why the others cannot."""
    found, missing = [], {}
    for make in makers:
        label = getattr(make, "__name__", str(make))
        try:
            found.append(make())
        except AllotmentError:
            raise
        except Exception as error:
            missing[label] = f"{type(error).__name__}: {error}".splitlines()[0]
    return found, missing


# The measures.


def pair_ns(contender: Contender, count: int) -> float:
    malloc, free = contender.malloc, contender.free
    start = time.perf_counter_ns()
    for _ in range(count):
        free(malloc(BLOCK))
    return (time.perf_counter_ns() - start) / count


def replacement_ns(contender: Contender, count: int) -> float:
    malloc, free = contender.malloc, contender.free
    choose = random.Random(1)
    plan = [(choose.randrange(LIVE), choose.choice(SIZES)) for _ in range(count)]
    live = [malloc(choose.choice(SIZES)) for _ in range(LIVE)]
    start = time.perf_counter_ns()
    for place, size in plan:
        live[place], live[-1] = live[-1], live[place]
        free(live.pop())
        live.append(malloc(size))
    elapsed = time.perf_counter_ns() - start
    while live:
        free(live.pop())
    return elapsed / count


MEASURES = {"pair": pair_ns, "replacement": replacement_ns}


def measure(found: list[Contender], rounds: int, count: int) -> dict[str, dict[str, Figure]]:
    device = CudaDevice(0)
    samples: dict[str, dict[str, list[float]]] = {each.name: {kind: [] for kind in MEASURES} for each in found}
    for turn in range(rounds + 1):
        for kind, take in MEASURES.items():
            for each in found:
                device.synchronize()
                taken = take(each, count)
                if turn > 0:  # the first round fills the caches
                    samples[each.name][kind].append(taken)
    return {name: {kind: Figure.of(taken) for kind, taken in kinds.items()} for name, kinds in samples.items()}


def from_c(rounds: int, count: int) -> dict[str, Figure]:
    """Ours through its C entry points, as another library would call it."""
    pairs = CPairs(Allocator("cuda:0", settings="compat:2.11"))
    pairs.pair_ns(BLOCK, count)
    pairs.replacement_ns(LIVE, BLOCK, count)
    return {
        "pair": Figure.of([pairs.pair_ns(BLOCK, 10 * count) for _ in range(rounds)]),
        "replacement": Figure.of([pairs.replacement_ns(LIVE, BLOCK, 10 * count) for _ in range(rounds)]),
    }


def in_quiet(work: Callable[[], Any]) -> Any:
    done = threading.Event()
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    gc.collect()
    gc.disable()
    try:
        return work()
    finally:
        gc.enable()
        done.set()
        thread.join()


# The two processes.


def measure_async_torch(rounds: int, count: int) -> dict[str, Any]:
    """Return figures of PyTorch's asynchronous backend, with ours beside it, from a separate process."""
    done = subprocess.run(
        [sys.executable, __file__, ASYNC_TORCH, "--rounds", str(rounds), "--count", str(count)],
        env=os.environ | {"PYTORCH_CUDA_ALLOC_CONF": "backend:cudaMallocAsync"},
        capture_output=True,
        text=True,
    )
    if done.returncode != 0:
        return {"figures": {}, "missing": {"torch cudaMallocAsync": done.stderr.strip()[-300:]}}
    return json.loads(done.stdout.splitlines()[-1])


def as_numbers(figures: dict[str, dict[str, Figure]]) -> dict[str, Any]:
    return {name: {kind: asdict(figure) for kind, figure in kinds.items()} for name, kinds in figures.items()}


def with_ratios(figures: dict[str, Any]) -> dict[str, Any]:
    """Return how many times as long as ours each takes, by the medians of the same process."""
    for kinds in figures.values():
        for kind, figure in kinds.items():
            figure["times_ours"] = figure["median"] / figures[OURS][kind]["median"]
    return figures


def print_table(figures: dict[str, Any]) -> None:
    print(f"{'':<44}" + "".join(f"{kind + ', ns (least..most)':>34}{'x ours':>9}" for kind in MEASURES))
    for name, kinds in figures.items():
        cells = "".join(
            f"{figure['median']:>14,.0f} ({figure['least']:,.0f}..{figure['most']:,.0f})".rjust(34)
            + f"{figure['times_ours']:>9.2f}"
            for figure in kinds.values()
        )
        print(f"{name:<44}{cells}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--count", type=int, default=20_000, help="calls in a round")
    parser.add_argument("--one-process", action="store_true", help="leave out PyTorch's asynchronous backend")
    parser.add_argument(ASYNC_TORCH, action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()

    if options.async_torch:
        found, missing = contenders([ours, torch_native])
        figures = as_numbers(in_quiet(lambda: measure(found, options.rounds, options.count)))
        print(json.dumps({"figures": figures, "missing": missing}))
        return 0

    def cupy_memory_pool() -> Contender:
        return cupy_pool("MemoryPool")

    def cupy_memory_async_pool() -> Contender:
        return cupy_pool("MemoryAsyncPool")

    makers = [ours, ours_expandable, nothing, torch_native, cupy_memory_pool, cupy_memory_async_pool, rmm_pool]
    found, missing = contenders(makers)
    figures = in_quiet(lambda: measure(found, options.rounds, options.count))
    figures["allotment, from C"] = in_quiet(lambda: from_c(options.rounds, options.count))
    apart = {"figures": {}, "missing": {}}
    if not options.one_process:
        apart = measure_async_torch(options.rounds, options.count)
    device = CudaDevice(0)
    result = {
        "device": device.model,
        "python": sys.version.split()[0],
        "one_process": with_ratios(as_numbers(figures)),
        "async_torch_process": with_ratios(apart["figures"]),
        "missing": missing | apart["missing"],
    }
    print(f"{device.model}, Python {result['python']}, {options.rounds} rounds of {options.count} calls\n")
    print_table(result["one_process"])
    if not options.one_process:
        print("\nPyTorch's asynchronous backend, in a process of its own")
        print_table(result["async_torch_process"])
    for name, reason in result["missing"].items():
        print(f"not measured: {name} ({reason})")
    peers = {
        name: kinds["pair"]["times_ours"]
        for group in ("one_process", "async_torch_process")
        for name, kinds in result[group].items()
        if name.startswith(("PyTorch", "CuPy"))
    }
    result["goal"] = {"pair_times_ours_at_least": GOAL, "reached": {name: r >= GOAL for name, r in peers.items()}}
    for name, ratio in peers.items():
        print(f"{name}: {ratio:.1f} times as long as ours, goal {GOAL:.0f}: {'reached' if ratio >= GOAL else 'missed'}")
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps(result, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
