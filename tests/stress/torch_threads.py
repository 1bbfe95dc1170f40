"""Threads that allocate, free and record streams through PyTorch, with Allotment as its allocator.

    python tests/stress/torch_threads.py [--seconds 60] [--threads 8] [--settings S] [--seed 1]

Each thread works on its own streams. A tensor is filled with a number that its neighbours do not have, read by another,
late stream, and freed without waiting; every reader counts wrong bytes on the GPU. At the end nothing may be allocated,
and the engine's invariants must hold. Exits with 1 if anything is wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time

from allotment.torch._install import install

MIB = 1 << 20
LARGEST = 24 * MIB


class Worker:
    """One thread: its streams, its live tensors, and its counts."""

    def __init__(self, torch, number: int, seed: int) -> None:
        self.torch = torch
        self.number = number
        self.choose = random.Random(seed * 1000 + number)
        self.own, self.reader = torch.cuda.Stream(), torch.cuda.Stream()
        self.live: list[tuple] = []
        self.tensors = self.recorded = self.refused = 0
        self.error = ""
        with torch.cuda.stream(self.own):
            self.wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
            self.wrong_for_reader = torch.zeros(1, dtype=torch.int64, device="cuda")
        self.own.synchronize()

    def run(self, deadline: float, stop: threading.Event) -> None:
        try:
            with self.torch.cuda.stream(self.own):
                while time.monotonic() < deadline and not stop.is_set():
                    try:
                        self.turn()
                    except self.torch.OutOfMemoryError:
                        self.refused += 1
                        self.live.clear()
                self.live.clear()
            self.own.synchronize()
            self.reader.synchronize()
            if bytes_wrong := int(self.wrong) + int(self.wrong_for_reader):
                self.error = f"{bytes_wrong} bytes were overwritten"
        except Exception as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            del self.wrong, self.wrong_for_reader
            if self.error:
                stop.set()

    def turn(self) -> None:
        torch, choose = self.torch, self.choose
        size = choose.choice((choose.randrange(1, 4096), choose.randrange(1, MIB), choose.randrange(1, LARGEST)))
        value = (self.number * 31 + self.tensors) % 251
        tensor = torch.full((size,), value, dtype=torch.uint8, device="cuda")
        self.tensors += 1
        self.live.append((tensor, value))
        if choose.random() < 0.3:
            self.reader.wait_stream(self.own)
            tensor.record_stream(self.reader)
            with torch.cuda.stream(self.reader):
                torch.cuda._sleep(choose.randrange(50_000))
                self.wrong_for_reader += (tensor != value).sum()
            self.recorded += 1
        if len(self.live) > 12:
            tensor, value = self.live.pop(choose.randrange(len(self.live)))
            self.wrong += (tensor != value).sum()
        if choose.random() < 0.002:
            torch.cuda.empty_cache()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--settings", default="")
    parser.add_argument("--mode", choices=["hooks", "deep"], default="hooks")
    parser.add_argument("--fraction", type=float, default=0.005, help="of the device's memory, so that it is short")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    install(options.mode, settings=options.settings)
    import torch

    from allotment.torch._replacements import allocator_of

    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(options.fraction)
    workers = [Worker(torch, number, options.seed) for number in range(options.threads)]
    deadline, stop = time.monotonic() + options.seconds, threading.Event()
    threads = [threading.Thread(target=worker.run, args=(deadline, stop)) for worker in workers]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    errors = [f"thread {worker.number}: {worker.error}" for worker in workers if worker.error]
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocator = allocator_of(0)
    allocator.inspection.check_invariants()
    stats = allocator.stats()
    for key in ("allocated_bytes.all.current", "active_bytes.all.current", "reserved_bytes.all.current"):
        if stats[key]:
            errors.append(f"{key} is {stats[key]} after everything was freed")
    for error in errors[:10]:
        print(error, file=sys.stderr)
    print(
        f"{sum(worker.tensors for worker in workers)} tensors,"
        f" {sum(worker.recorded for worker in workers)} read by another stream,"
        f" {sum(worker.refused for worker in workers)} refused,"
        f" {stats['num_device_alloc']} device allocations, {options.threads} threads, seed {options.seed}:"
        f" {len(errors)} errors"
    )
    sys.exit(1 if errors else 0)


if __name__ == "__main__":
    main()
