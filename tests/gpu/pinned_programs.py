"""Random programs on PyTorch's own pinned memory and on ours: PyTorch must then report the same, key by key.

    python tests/gpu/pinned_programs.py [--programs N] [--steps N] [--seed S] [--settings S] [--kind torch|tight]

Each program pins and frees tensors, copies them on several streams, captures graphs that copy from pinned memory,
empties the cache, changes settings and reads figures in between. In the mode "torch" the figures, the reuse of
places, the history of pinned memory (where PyTorch has one) and errors are compared, and contents are checked; `MASKS`
says what is not. In the mode "tight" only contents and errors are compared, because it decides differently. Exits with
1 if anything differs.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
from typing import Any

from allotment.torch._deep.comparing import difference

NATIVE = "native"
WORKER = "--worker"
MIB = 1 << 20
SIZES = (1, 512, 4096, 70_000, 900_000, MIB, 3 * MIB, 17 * MIB)
SLEEP_CYCLES = 100_000_000
"""Longer than the calls between two waits for the device."""


class Program:
    """One random program; `reported` is what PyTorch reported during it."""

    def __init__(self, torch: Any, seed: int, figures: bool) -> None:
        self.torch = torch
        self.draw = random.Random(seed)
        self.figures = figures
        self.tensors: list[tuple[Any, int]] = []
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.graphs: list[Any] = []
        self.places: dict[int, int] = {}
        self.seen = 0
        self.captured = False
        self.reported: list[Any] = []

    def run(self, steps: int) -> list[Any]:
        self.release = tuple(int(part) for part in self.torch.__version__.split(".")[:2])
        self.torch.ones(1).cuda()
        if self.release >= (2, 14):
            self.torch.cuda.memory._record_memory_history(
                stacks="python", max_entries=100_000, record_pinned_host_memory=True
            )
        kinds = [
            *[self.pin] * 10, *[self.free] * 8, *[self.copy] * 6, *[self.copy_behind_work] * 3, *[self.copy_back] * 2,
            *[self.wait] * 4, self.capture, self.drop_graph, self.empty_cache, self.reset, self.ask,
        ]  # fmt: skip
        for _ in range(steps):
            step = self.draw.choice(kinds)
            try:
                step()
            except Exception as error:
                self.reported.append([step.__name__, type(error).__name__, str(error).splitlines()[0]])
        self.wait()
        self.ask()
        if self.figures and self.release >= (2, 14):
            self.reported.append(self.history())
        return self.reported

    def place(self, address: int) -> int:
        if address not in self.places:
            self.seen += 1
            self.places[address] = self.seen
        return self.places[address]

    def pin(self) -> None:
        size = int(self.draw.choice(SIZES) * self.draw.uniform(0.5, 1.0)) + 1
        mark = self.draw.randrange(1, 256)
        if self.draw.random() < 0.5:
            tensor = self.torch.full((size,), mark, dtype=self.torch.uint8).pin_memory()
        else:
            tensor = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)
            tensor.fill_(mark)
        self.tensors.append((tensor, mark))
        if self.figures:
            self.reported.append(["pin", size, self.place(tensor.data_ptr())])

    def free(self) -> None:
        if self.tensors:
            del self.tensors[self.draw.randrange(len(self.tensors))]

    def chosen(self) -> tuple[Any, int] | None:
        return self.draw.choice(self.tensors) if self.tensors else None

    def copy(self) -> None:
        found = self.chosen()
        if found is None:
            return
        with self.torch.cuda.stream(self.draw.choice(self.streams)):
            copied = found[0].to("cuda", non_blocking=True)
        self.wait()
        self.reported.append(["copied", bool((copied.cpu() == found[1]).all())])

    def copy_behind_work(self) -> None:
        """The block is freed while its copy waits, so the next request must not get it."""
        if not self.tensors:
            return
        tensor, mark = self.tensors.pop(self.draw.randrange(len(self.tensors)))
        with self.torch.cuda.stream(self.draw.choice(self.streams)):
            self.torch.cuda._sleep(SLEEP_CYCLES)
            copied = tensor.to("cuda", non_blocking=True)
        size = tensor.numel()
        del tensor
        other = self.torch.empty(size, dtype=self.torch.uint8, pin_memory=True)
        other.fill_(0)
        if self.figures:
            self.reported.append(["behind", self.place(other.data_ptr())])
        self.wait()
        self.reported.append(["copied", bool((copied.cpu() == mark).all())])

    def copy_back(self) -> None:
        found = self.chosen()
        if found is None:
            return
        tensor, mark = found
        on_device = self.torch.full((tensor.numel(),), mark, dtype=self.torch.uint8).cuda()
        back = self.torch.empty(tensor.numel(), dtype=self.torch.uint8, pin_memory=True)
        back.copy_(on_device, non_blocking=True)
        self.wait()
        self.reported.append(["back", bool((back == mark).all())])

    def wait(self) -> None:
        self.torch.cuda.synchronize()

    def capture(self) -> None:
        if len(self.graphs) >= 2:
            return
        self.captured = True
        torch, graph = self.torch, self.torch.cuda.CUDAGraph()
        self.wait()
        shared = self.graphs[0][0].pool() if self.graphs and self.draw.random() < 0.5 else None
        uses, frees = self.draw.random() < 0.7, self.draw.random() < 0.5
        places = []
        self.forget_places()  # the beginning of a capture empties the cache
        with torch.cuda.graph(graph, pool=shared, stream=self.streams[1], capture_error_mode="thread_local"):
            target = torch.empty(8, device="cuda")
            target.zero_()
            kept = []
            for _ in range(2):
                source = torch.ones(8).pin_memory()
                places.append(self.place(source.data_ptr()))
                if uses:
                    target.copy_(source, non_blocking=True)
                if not frees:
                    kept.append(source)
                del source
        self.graphs.append((graph, kept, target))
        if self.figures:
            self.reported.append(["captured", places])

    def drop_graph(self) -> None:
        if self.graphs:
            del self.graphs[self.draw.randrange(len(self.graphs))]

    def empty_cache(self) -> None:
        self.wait()
        self.torch._C._host_emptyCache()
        self.forget_places()

    def forget_places(self) -> None:
        """The driver may return an address again that was freed."""
        live = {tensor.data_ptr() for tensor, _ in self.tensors}
        self.places = {address: place for address, place in self.places.items() if address in live}

    def reset(self) -> None:
        cuda = self.torch.cuda
        self.draw.choice([cuda.reset_peak_host_memory_stats, cuda.reset_accumulated_host_memory_stats])()

    def ask(self) -> None:
        if self.figures:
            stats = dict(self.torch.cuda.host_memory_stats())
            self.reported.append({key: value for key, value in stats.items() if not self.is_masked(key)})

    def is_masked(self, key: str) -> bool:
        """Whether a figure may differ: times; what 2.12 and older count wrongly; peaks that 2.15 adds up by pool."""
        return (
            ("_time." in key and not key.endswith("count"))
            or (key.startswith("active_") and self.release < (2, 13))
            or (key.startswith("active_") and key.endswith(".peak") and self.captured and self.release >= (2, 15))
        )

    def history(self) -> Any:
        reported = self.torch.cuda.memory._snapshot()
        numbers: dict[int, int] = {}
        segments = [self.known(segment, None) for segment in reported["host_segments"]]
        return [self.known(reported["host_traces"], numbers), sorted(segments, key=str)]

    def known(self, reported: Any, numbers: dict[int, int] | None) -> Any:
        """Remove clocks and random ids of pools; a place is replaced by the number of the segment obtained there."""
        if isinstance(reported, list):
            return [self.known(part, numbers) for part in reported]
        if not isinstance(reported, dict):
            return reported
        found = {
            key: self.known(value, numbers) for key, value in reported.items() if key not in ("time_us", "address")
        }
        for key in ("pool_id", "segment_pool_id"):
            if key in found:
                found[key] = "default" if tuple(found[key]) == (0, 0) else "private"
        if "addr" in found and numbers is not None:
            if found["action"] == "segment_alloc":
                numbers[found["addr"]] = numbers[0] = numbers.get(0, 0) + 1
            found["addr"] = numbers.get(found["addr"])
        return found


def work(kind: str, seed: int, steps: int, figures: bool) -> None:
    if kind != NATIVE:
        import allotment.torch

        allotment.torch.install(pinned=kind)
    import torch

    json.dump(Program(torch, seed, figures).run(steps), sys.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="", help="PYTORCH_CUDA_ALLOC_CONF of both")
    parser.add_argument("--kind", choices=["torch", "tight"], default="torch")
    parser.add_argument(WORKER, nargs=3, metavar=("KIND", "SEED", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    figures = options.kind == "torch"
    if options.worker:
        work(options.worker[0], int(options.worker[1]), int(options.worker[2]), figures)
        return 0
    different = 0
    for seed in range(options.seed, options.seed + options.programs):
        reported = []
        for kind in (NATIVE, options.kind):
            command = [sys.executable, __file__, "--kind", options.kind, WORKER, kind, str(seed), str(options.steps)]
            environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": options.settings}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
            reported.append(json.loads(done.stdout) if done.returncode == 0 else [f"ended with {done.returncode}"])
        ended = [answers[0] for answers in reported if len(answers) == 1]
        found = difference(reported[0], reported[1]) or (str(ended[0]) if ended else None)
        different += found is not None
        print(f"program {seed}: {found[:500] if found else f'equal, {len(reported[0])} answers'}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
