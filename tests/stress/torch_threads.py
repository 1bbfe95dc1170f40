"""Threads that allocate, free and record streams through PyTorch, with Allotment as its allocator.

    python tests/stress/torch_threads.py [--seconds 60] [--threads 8] [--settings S] [--seed 1]

Each thread works on streams of its own. A tensor is filled with a number that no other live tensor has, read by
another stream that is behind, and freed without waiting; every reader counts on the GPU how many bytes are not what they
should be. At the end nothing may be allocated, and the engine's rules must hold. Ends with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import random
import sys
import threading
import time

from allotment.torch.install import install

MIB = 1 << 20
LARGEST = 24 * MIB


class Stress:
    def __init__(self, torch, seed: int, deadline: float) -> None:
        self.torch = torch
        self.seed = seed
        self.deadline = deadline
        self.lock = threading.Lock()
        self.errors: list[str] = []
        self.tensors = self.recorded = self.refused = 0

    def work(self, number: int) -> None:
        try:
            self.allocate_and_free(number)
        except Exception as error:
            with self.lock:
                self.errors.append(f"thread {number}: {type(error).__name__}: {error}")

    def allocate_and_free(self, number: int) -> None:
        torch = self.torch
        choose = random.Random(self.seed * 1000 + number)
        own, reader = torch.cuda.Stream(), torch.cuda.Stream()
        tensors = recorded = refused = 0
        live: list[tuple] = []
        with torch.cuda.stream(own):
            wrong = torch.zeros(1, dtype=torch.int64, device="cuda")
            wrong_for_reader = torch.zeros(1, dtype=torch.int64, device="cuda")
        own.synchronize()
        while time.monotonic() < self.deadline and not self.errors:
            size = choose.choice((choose.randrange(1, 4096), choose.randrange(1, MIB), choose.randrange(1, LARGEST)))
            value = (number * 31 + tensors) % 251
            try:
                with torch.cuda.stream(own):
                    tensor = torch.full((size,), value, dtype=torch.uint8, device="cuda")
            except torch.OutOfMemoryError:
                refused += 1
                live.clear()
                continue
            tensors += 1
            if choose.random() < 0.3:
                reader.wait_stream(own)
                with torch.cuda.stream(reader):
                    torch.cuda._sleep(choose.randrange(50_000))
                    wrong_for_reader += (tensor != value).sum()
                tensor.record_stream(reader)
                recorded += 1
            live.append((tensor, value))
            del tensor
            if len(live) > 12:
                tensor, value = live.pop(choose.randrange(len(live)))
                with torch.cuda.stream(own):
                    wrong += (tensor != value).sum()
                del tensor
            if choose.random() < 0.002:
                torch.cuda.empty_cache()
        with torch.cuda.stream(own):
            for tensor, value in live:
                wrong += (tensor != value).sum()
            live.clear()
        own.synchronize()
        reader.synchronize()
        bytes_wrong = int(wrong) + int(wrong_for_reader)
        with self.lock:
            self.tensors += tensors
            self.recorded += recorded
            self.refused += refused
            if bytes_wrong:
                self.errors.append(f"thread {number}: {bytes_wrong} bytes were overwritten")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--threads", type=int, default=8)
    parser.add_argument("--settings", default="")
    parser.add_argument("--fraction", type=float, default=0.01, help="of the device's memory, so that it runs out at times")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    install(settings=options.settings)
    import torch

    from allotment.torch.hooks import allocator_of

    torch.cuda.init()
    torch.cuda.set_per_process_memory_fraction(options.fraction)
    stress = Stress(torch, options.seed, time.monotonic() + options.seconds)
    threads = [threading.Thread(target=stress.work, args=(number,)) for number in range(options.threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    allocator = allocator_of(0)
    allocator.check_invariants()
    stats = allocator.stats()
    for key in ("allocated_bytes.all.current", "active_bytes.all.current", "reserved_bytes.all.current"):
        if stats[key]:
            stress.errors.append(f"{key} is {stats[key]} after everything was freed")
    for error in stress.errors[:10]:
        print(error, file=sys.stderr)
    print(
        f"{stress.tensors} tensors, {stress.recorded} read by another stream, {stress.refused} refused,"
        f" {stats['num_device_alloc']} device allocations, {options.threads} threads, seed {options.seed}:"
        f" {len(stress.errors)} errors"
    )
    sys.exit(1 if stress.errors else 0)


if __name__ == "__main__":
    main()
