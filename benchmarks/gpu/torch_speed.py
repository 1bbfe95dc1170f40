"""The cost of a tensor and a training step under PyTorch's own allocator and under ours: medians and spread of one run.

    python benchmarks/gpu/torch_speed.py [--out FILE]

    empty, SIZE      torch.empty(SIZE) made and dropped, again and again
    replacement      one of 256 live tensors, chosen at random, is replaced by one of another size
    MLP step         forward, backward and optimizer of a small network, whose time is mostly the CPU's

The allocator can be replaced once in a process, so each has a separate process; they work in turns, one at a time, so
that a slow moment of the machine affects all of them. A second thread is alive in each, because locks are cheaper
without one, and the garbage collector is off.
"""

from __future__ import annotations

import argparse
import gc
import json
import operator
import os
import random
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

KIB, MIB = 1 << 10, 1 << 20
SIZES = {"512 B": 512, "100 KiB": 100 * KIB, "1 MiB": MIB, "20 MiB": 20 * MIB, "200 MiB": 200 * MIB}
LIVE = 256
MIXED = (512, 2_000, 10_000, 60_000, 300_000, 1_000_000, 3_000_000)
NATIVE = "native"
CONTENDERS = {
    NATIVE: ("native", ""),
    "native, expandable": ("native", "expandable_segments:True"),
    "hooks": ("hooks", ""),
    "hooks, expandable": ("hooks", "expandable_segments:True"),
    "deep": ("deep", ""),
    "deep, expandable": ("deep", "expandable_segments:True"),
}
WORKER = "--worker"


# The worker: for a measure and a count on a line, it answers with nanoseconds per repetition.


def empty_ns(torch: Any, size: int) -> Callable[[int], float]:
    empty, uint8, device = torch.empty, torch.uint8, torch.device("cuda:0")

    def measure(count: int) -> float:
        start = time.perf_counter_ns()
        for _ in range(count):
            empty(size, dtype=uint8, device=device)
        return (time.perf_counter_ns() - start) / count

    return measure


def replacement_ns(torch: Any) -> Callable[[int], float]:
    empty, uint8, device = torch.empty, torch.uint8, torch.device("cuda:0")

    def measure(count: int) -> float:
        choose = random.Random(1)
        plan = [(choose.randrange(LIVE), choose.choice(MIXED)) for _ in range(count)]
        live = [empty(choose.choice(MIXED), dtype=uint8, device=device) for _ in range(LIVE)]
        start = time.perf_counter_ns()
        for place, size in plan:
            live[place] = None
            live[place] = empty(size, dtype=uint8, device=device)
        return (time.perf_counter_ns() - start) / count

    return measure


def mlp_step_ns(torch: Any) -> Callable[[int], float]:
    torch.manual_seed(0)
    layers = [torch.nn.Linear(256, 256) if i % 2 == 0 else torch.nn.ReLU() for i in range(8)]
    model = torch.nn.Sequential(*layers, torch.nn.Linear(256, 1)).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
    x, y = torch.randn(64, 256, device="cuda"), torch.randn(64, 1, device="cuda")

    def measure(count: int) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter_ns()
        for _ in range(count):
            optimizer.zero_grad(set_to_none=True)
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
        torch.cuda.synchronize()
        return (time.perf_counter_ns() - start) / count

    return measure


def measures(torch: Any) -> dict[str, Callable[[int], float]]:
    empties = {f"empty, {name}": empty_ns(torch, size) for name, size in SIZES.items()}
    return {**empties, f"replacement among {LIVE}": replacement_ns(torch), "MLP step": mlp_step_ns(torch)}


def counts(count: int) -> dict[str, int]:
    return {**{f"empty, {name}": count for name in SIZES}, f"replacement among {LIVE}": count, "MLP step": count // 40}


def work(allocator: str, settings: str) -> None:
    if allocator != NATIVE:
        from allotment.torch._install import install

        install(allocator, settings=settings)
    import torch

    known = measures(torch)
    threading.Thread(target=threading.Event().wait, daemon=True).start()
    gc.collect()
    gc.disable()
    print(json.dumps({"gpu": torch.cuda.get_device_name(), "torch": torch.__version__}), flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        torch.cuda.synchronize()
        print(json.dumps(known[asked["measure"]](asked["count"])), flush=True)


class Worker:
    """A process with one allocator."""

    def __init__(self, allocator: str, settings: str) -> None:
        environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": settings if allocator == NATIVE else ""}
        self.process = subprocess.Popen(
            [sys.executable, __file__, WORKER, allocator, settings],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.about = self.answer()

    def answer(self) -> Any:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            sys.exit(f"a worker ended with {self.process.wait()}")
        return json.loads(line)

    def measure(self, name: str, count: int) -> float:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps({"measure": name, "count": count}) + "\n")
        self.process.stdin.flush()
        taken: float = self.answer()
        return taken

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


# The comparison.


def figures(samples: dict[str, dict[str, list[float]]]) -> dict[str, dict[str, dict[str, float]]]:
    """Return for each measure and contender: median, minimum and maximum, and the ratio to the native one.

    That is the median over rounds, in which the two are measured right after each other: the machine's clock changes by
    a factor of two in the course of a run.
    """
    return {
        measure: {
            name: {
                "median": statistics.median(taken),
                "least": min(taken),
                "most": max(taken),
                "of_native": statistics.median(map(operator.truediv, taken, by_name[native_of(name)])),
            }
            for name, taken in by_name.items()
        }
        for measure, by_name in samples.items()
    }


def native_of(name: str) -> str:
    """The native contender with the same settings."""
    return name.replace("hooks", NATIVE).replace("deep", NATIVE)


def print_table(result: dict[str, dict[str, dict[str, float]]]) -> None:
    print("| microseconds, median (least..most) | " + " | ".join(CONTENDERS) + " |")
    print("|---|" + "---|" * len(CONTENDERS))
    for measure, by_name in result.items():
        cells = [
            f"{figure['median'] / 1e3:,.2f} ({figure['least'] / 1e3:,.2f}..{figure['most'] / 1e3:,.2f})"
            + (f", {figure['of_native']:.2f} x" if native_of(name) != name else "")
            for name, figure in by_name.items()
        ]
        print(f"| {measure} | " + " | ".join(cells) + " |")
    for measure, by_name in result.items():
        if measure.startswith("empty"):
            for mode in ("hooks", "deep"):
                ratio = by_name[mode]["of_native"]
                reached = "reached" if ratio <= 1 else "missed"
                print(f"{measure}, {mode}: {ratio:.2f} of the native time, goal 1.00: {reached}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=41)
    parser.add_argument("--count", type=int, default=2_000, help="tensors in a round; steps are fewer")
    parser.add_argument("--out", type=Path, help="write the figures as JSON to this file")
    parser.add_argument(WORKER, nargs=2, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(*options.worker)
        return 0
    workers = {name: Worker(*each) for name, each in CONTENDERS.items()}
    samples: dict[str, dict[str, list[float]]] = {
        measure: {name: [] for name in workers} for measure in counts(options.count)
    }
    for turn in range(options.rounds + 1):
        for measure, count in counts(options.count).items():
            for name, worker in list(workers.items())[:: 1 if turn % 2 else -1]:
                taken = worker.measure(measure, count)
                if turn > 0:  # the first round fills the caches
                    samples[measure][name].append(taken)
    for worker in workers.values():
        worker.end()
    about = workers[NATIVE].about
    print(f"{about['gpu']}, PyTorch {about['torch']}, {options.rounds} rounds of {options.count} tensors\n")
    result = figures(samples)
    print_table(result)
    if options.out:
        options.out.parent.mkdir(parents=True, exist_ok=True)
        options.out.write_text(json.dumps({**about, "figures": result}, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
