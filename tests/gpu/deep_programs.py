"""Random programs under PyTorch's own allocator and in deep mode: PyTorch must then report the same, key by key.

    python tests/gpu/deep_programs.py [--programs N] [--steps N] [--seed S] [--settings S]

Each program allocates and frees tensors on several streams, routes them to private pools, captures graphs, takes and
restores states of pools, runs out of memory, records its history and reads figures in between. It runs natively and in
deep mode, each in a separate process, and prints `memory_stats()`, `memory_snapshot()`, the history and errors.
Everything is compared, places and the order of the history too; `MASKS`, `in_settled_order`, `Places` and
`without_others` say what is not compared, and why. A driver that puts segments into another order in the second run
would show as a difference. Ends with 1 if anything differs.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

from allotment.torch._deep.comparing import Places, difference, in_settled_order

NATIVE, DEEP = "native", "deep"
WORKER = "--worker"
MIB = 1 << 20
LIMIT = 600 * MIB
SIZES = (1, 512, 4000, 70_000, 900_000, MIB, 3 * MIB, 11 * MIB, 30 * MIB, 64 * MIB)


class Program:
    """One random program; `reports` are what PyTorch reported during it."""

    def __init__(self, torch: Any, seed: int) -> None:
        self.torch = torch
        self.draw = random.Random(seed)
        self.tensors: list[Any] = []
        self.streams = [torch.cuda.current_stream(), torch.cuda.Stream(), torch.cuda.Stream()]
        self.pools: list[Any] = []
        self.graphs: list[Any] = []
        self.reports: list[Any] = []

    def run(self, steps: int) -> list[Any]:
        total = self.torch.cuda.mem_get_info()[1]
        self.torch.cuda.set_per_process_memory_fraction(min(1.0, LIMIT / total))
        self.torch.cuda.memory._record_memory_history(stacks="python", max_entries=100_000)
        kinds = [
            *[self.allocate] * 10, *[self.free] * 8, self.use_elsewhere, self.use_elsewhere, self.new_pool,
            self.allocate_in_pool, self.allocate_in_pool, self.drop_pool, self.capture, self.drop_graph,
            self.empty_cache, self.reset, self.ask, self.too_much,
        ]  # fmt: skip
        for _ in range(steps):
            step = self.draw.choice(kinds)
            try:
                step()
            except Exception as error:
                self.reports.append([step.__name__, type(error).__name__, str(error).splitlines()[0]])
        self.ask()
        self.reports.append(self.history())
        return self.reports

    def new(self) -> Any:
        size = int(self.draw.choice(SIZES) * self.draw.uniform(0.5, 1.0)) + 1
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def allocate(self) -> None:
        with self.torch.cuda.stream(self.draw.choice(self.streams)):
            self.tensors.append(self.new())

    def free(self) -> None:
        if self.tensors:
            del self.tensors[self.draw.randrange(len(self.tensors))]

    def use_elsewhere(self) -> None:
        if self.tensors:
            tensor, stream = self.draw.choice(self.tensors), self.draw.choice(self.streams)
            tensor.record_stream(stream)
            self.torch.cuda.synchronize()

    def new_pool(self) -> None:
        if len(self.pools) < 3:
            flags = {"use_on_oom": self.draw.random() < 0.3, "no_split": self.draw.random() < 0.3}
            self.pools.append(self.torch.cuda.MemPool(**flags))

    def allocate_in_pool(self) -> None:
        if self.pools:
            pool = self.draw.choice(self.pools)
            with self.noting(pool.id), self.torch.cuda.use_mem_pool(pool):
                self.tensors.append(self.new())
            self.reports.append(["pool", pool.use_count(), len(pool.snapshot())])

    @contextlib.contextmanager
    def noting(self, pool: tuple[int, int]) -> Iterator[None]:
        """The metadata of entries recorded meanwhile names the pool."""
        self.torch.cuda.memory._set_memory_metadata(f"pool {pool[0]:06} {pool[1]:06}")
        try:
            yield
        finally:
            self.torch.cuda.memory._set_memory_metadata("")

    def drop_pool(self) -> None:
        if self.pools:
            del self.pools[self.draw.randrange(len(self.pools))]

    def capture(self) -> None:
        if len(self.graphs) >= 2:
            return
        torch, graph = self.torch, self.torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        pool = torch.cuda.graph_pool_handle()
        with self.noting(pool), torch.cuda.stream(self.streams[1]):
            graph.capture_begin(pool=pool)
            kept = [self.new() for _ in range(self.draw.choice([1, 1, 2, 3]))]
            kept[0].zero_()
            graph.capture_end()
        self.graphs.append((graph, kept))
        live = {tensor.untyped_storage().data_ptr() for tensor in kept}
        self.reports.append(["live", torch._C._cuda_checkPoolLiveAllocations(0, pool, live)])
        state = torch._C._cuda_getCheckpointState(0, pool)
        # The order in which the segments of a state come back is undefined; with one segment, there is only one order.
        if self.draw.random() < 0.5 and len(kept) == 1:
            torch._C._cuda_setCheckpointPoolState(0, state, [], [])
        self.reports.append(["live after", torch._C._cuda_checkPoolLiveAllocations(0, pool, live)])

    def drop_graph(self) -> None:
        if self.graphs:
            del self.graphs[self.draw.randrange(len(self.graphs))]

    def empty_cache(self) -> None:
        self.torch.cuda.empty_cache()

    def reset(self) -> None:
        self.draw.choice([self.torch.cuda.reset_peak_memory_stats, self.torch.cuda.reset_accumulated_memory_stats])()

    def too_much(self) -> None:
        self.torch.empty(2 * LIMIT, dtype=self.torch.uint8, device="cuda")

    def ask(self) -> None:
        self.reports.append(dict(self.torch.cuda.memory_stats()))
        self.reports.append(self.known(self.torch.cuda.memory_snapshot()))
        self.reports.append(self.torch.cuda.memory_summary())

    def history(self) -> dict[str, Any]:
        """Return everything that a snapshot contains, in its order."""
        reported = self.known(self.torch.cuda.memory._snapshot())
        reported["device_traces"] = [in_settled_order(trace) for trace in reported["device_traces"]]
        return reported

    def known(self, reported: Any) -> Any:
        """Return the report, with masks for values that depend on chance."""
        if isinstance(reported, dict):
            return {
                key: MASKS[key](self, reported[key]) if key in MASKS else self.known(reported[key]) for key in reported
            }
        if isinstance(reported, (list, tuple)):
            return [self.known(part) for part in reported]
        return reported

    def stream_number(self, handle: int) -> int | str:
        handles = [stream.cuda_stream for stream in self.streams]
        return handles.index(handle) if handle in handles else "another"


# Values that depend on chance, and what is compared instead.
MASKS: dict[str, Callable[[Program, Any], Any]] = {
    # A clock: that it has a value.
    "time_us": lambda program, time: time > 0,
    # A handle is an address of the driver's: which of the program's streams has it.
    "stream": Program.stream_number,
    # The memory left for all processes when memory ran out: that some was left.
    "device_free": lambda program, left: left > 0,
}


def work(allocator: str, seed: int, steps: int) -> None:
    if allocator == DEEP:
        import allotment.torch

        allotment.torch.install("deep")
    import torch

    json.dump(Program(torch, seed).run(steps), sys.stdout)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--settings", default="", help="PYTORCH_CUDA_ALLOC_CONF of both")
    parser.add_argument(WORKER, nargs=3, metavar=("ALLOCATOR", "SEED", "STEPS"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        work(options.worker[0], int(options.worker[1]), int(options.worker[2]))
        return 0
    different = 0
    for seed in range(options.seed, options.seed + options.programs):
        reported = []
        for allocator in (NATIVE, DEEP):
            command = [sys.executable, __file__, WORKER, allocator, str(seed), str(options.steps)]
            environment = os.environ | {"PYTORCH_CUDA_ALLOC_CONF": options.settings}
            done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=False)
            if done.returncode == 0:
                answers = json.loads(done.stdout)
                reported.append(Places(answers[-1]["device_traces"][0]).instead_of_addresses(answers))
            else:
                reported.append([f"ended with {done.returncode}"])
        found = difference(reported[0], reported[1]) or next((str(end[0]) for end in reported if len(end) == 1), None)
        different += found is not None
        shown = f"equal, {len(reported[0])} answers" if found is None else found[:500]
        print(f"program {seed}: {shown}", flush=True)
    return 1 if different else 0


if __name__ == "__main__":
    sys.exit(main())
