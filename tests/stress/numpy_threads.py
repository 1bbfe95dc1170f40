"""Threads that work on arrays while the handler of `allotment.numpy` is installed and uninstalled.

    python tests/stress/numpy_threads.py [--seconds 60] [--threads 4]

Each thread makes, changes, sorts, resizes, passes on and drops arrays, inside `caching` and outside, and checks their
contents; the main thread installs and uninstalls. At the end nothing may be left in the allocators.
"""

import argparse
import queue
import random
import sys
import threading
import time

import numpy as np

import allotment
import allotment.numpy

SIZES = [100, 10_000, 140_000, 300_000, 1_500_000, 5_000_000]  # of float64: from system to allocator


def work(
    seed: int, over: threading.Event, shared: allotment.Allocator, handed_on: queue.SimpleQueue, faults: list
) -> None:
    draw = random.Random(seed)
    held: list[tuple[np.ndarray, float]] = []
    rounds = 0
    try:
        while not over.is_set():
            if draw.random() < 0.5:
                with allotment.numpy.caching(shared, threshold="64KiB", idle_seconds=None):
                    step(draw, held, handed_on)
            else:
                step(draw, held, handed_on)
            rounds += 1
    except BaseException as error:
        faults.append(error)
    faults.append(rounds)


def step(draw: random.Random, held: list, handed_on: queue.SimpleQueue) -> None:
    value = float(draw.randrange(1, 1000))
    size = draw.choice(SIZES)
    kind = draw.randrange(6)
    if kind == 0:
        array = np.zeros(size)
        assert not array.any()
        array += value
    elif kind == 1:
        array = np.full(size, value)
    elif kind == 2:
        array = np.sort(np.full(size, value - 1) + 1)
    elif kind == 3:
        array = np.full(size, value)
        array.resize(size * 2, refcheck=False)
        assert not array[size:].any()
        array[size:] = value
    elif kind == 4:
        array = np.full(size, value)
        array.resize(max(size // 3, 1), refcheck=False)
    else:
        array = (np.full(size, value) * 2 - value).reshape(-1, 2).copy()
    held.append((array, value))
    while len(held) > 6:
        array, value = held.pop(draw.randrange(len(held)))
        assert (array == value).all(), f"{value} became {np.unique(array)[:5]}"
        if draw.random() < 0.3:
            handed_on.put((array, value))
    while draw.random() < 0.4:
        try:
            array, value = handed_on.get_nowait()
        except queue.Empty:
            break
        assert (array == value).all()


def allocations(*allocators: allotment.Allocator) -> list[int]:
    return [one.stats()["allocation.all.allocated"] for one in allocators]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--threads", type=int, default=4)
    chosen = parser.parse_args()
    shared, installed = allotment.Allocator("host"), allotment.Allocator("host")
    handed_on: queue.SimpleQueue = queue.SimpleQueue()
    faults: list = []
    until = time.monotonic() + chosen.seconds
    over = threading.Event()
    threads = [
        threading.Thread(target=work, args=(seed, over, shared, handed_on, faults)) for seed in range(chosen.threads)
    ]
    for thread in threads:
        thread.start()
    changes = 0
    # However busy the machine is, both serve arrays. A thread that has failed ends before.
    while time.monotonic() < until or not all(allocations(shared, installed)):
        if not all(thread.is_alive() for thread in threads):
            break
        allotment.numpy.install(installed, threshold="64KiB", idle_seconds=None)
        threads[0].join(0.002)
        allotment.numpy.uninstall()
        installed.trim_to(0)
        threads[0].join(0.002)
        changes += 1
    over.set()
    for thread in threads:
        thread.join()
    while not handed_on.empty():
        handed_on.get()
    errors = [fault for fault in faults if isinstance(fault, BaseException)]
    rounds = sum(fault for fault in faults if not isinstance(fault, BaseException))
    left = sum(one.stats()["allocated_bytes.all.current"] for one in (shared, installed))
    served = allocations(shared, installed)
    for one in (shared, installed):
        one.inspection.check_invariants()
        one.empty_cache()
        left += one.stats()["reserved_bytes.all.current"]
    for error in errors:
        print(repr(error))
    print(f"{rounds} rounds on {chosen.threads} threads, {changes} times installed, {served} arrays served")
    print(f"{left} bytes left")
    return 1 if errors or left or not all(served) else 0


if __name__ == "__main__":
    sys.exit(main())
