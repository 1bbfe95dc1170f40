"""The cost of malloc and free, in this tree and in others, measured in turns.

    python benchmarks/hot_path.py [--rounds 25] [--only WORDS] [SOURCE...]

SOURCE is the folder `src` of another tree, built with the same Python; the state before a change, for instance. Each
tree has a separate process. They take turns, figure by figure, and the minimum of five short measurements counts: so a
busy machine disturbs them little and equally. Prints for each figure the median in nanoseconds, and for the other trees
also the median of the ratios of this tree's figure to theirs.
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
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1] / "src"
DEVICE, SETTINGS = "sim:1024GiB", "compat:newest"
DENSE, EXPANDABLE = f"{SETTINGS},placement:dense", f"{SETTINGS},expandable_segments:True"
BLOCK = 1000
SIZES = (512, 2_000, 10_000, 60_000, 300_000, 1_000_000, 3_000_000)
LIVE = 256
TAKINGS = 5
Measure = Callable[[int], float]


def replacing_in_python(malloc: Callable[[int], int], free: Callable[[int], object]) -> Measure:
    """As in benchmarks/gpu/latency.py: one of 256 live blocks is replaced by one of another size."""
    choose = random.Random(1)
    plan = [(choose.randrange(LIVE), choose.choice(SIZES)) for _ in range(4_000)]
    live = [malloc(choose.choice(SIZES)) for _ in range(LIVE)]

    def measure(count: int) -> float:
        start = time.perf_counter_ns()
        for place, size in plan[:count]:
            live[place], live[-1] = live[-1], live[place]
            free(live.pop())
            live.append(malloc(size))
        return (time.perf_counter_ns() - start) / count

    return measure


def on_threads(pairs: list[Any], size: int) -> Measure:
    """Return the nanoseconds of a pair while each of these allocators has a thread that does nothing else."""

    def measure(count: int) -> float:
        threads = [threading.Thread(target=each.pair_ns, args=(size, count)) for each in pairs]
        start = time.perf_counter_ns()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return (time.perf_counter_ns() - start) / (count * len(pairs))

    return measure


def measures() -> dict[str, tuple[Measure, int]]:
    """Return each figure, and how many calls one measurement needs."""
    from allotment import Allocator
    from allotment.lab.bench.hot_path import CPairs, EmptyAllocator
    from allotment.lab.bench.run import python_pair_ns

    ours, dense, nothing = Allocator(DEVICE, settings=SETTINGS), Allocator(DEVICE, settings=DENSE), EmptyAllocator()
    from_c, expandable, dense_from_c = (
        CPairs(Allocator(DEVICE, settings=text)) for text in (SETTINGS, EXPANDABLE, DENSE)
    )
    replaced = Allocator(DEVICE, settings=SETTINGS)
    shared, apart = (
        CPairs(Allocator(DEVICE, settings=SETTINGS)),
        [CPairs(Allocator(f"{DEVICE}#{number}", settings=SETTINGS)) for number in (1, 2)],
    )
    return {
        "pair from C": (lambda count: from_c.pair_ns(BLOCK, count), 10_000),
        "pair from C, expandable segments": (lambda count: expandable.pair_ns(BLOCK, count), 10_000),
        "pair from C, dense": (lambda count: dense_from_c.pair_ns(BLOCK, count), 10_000),
        "pair from Python": (lambda count: python_pair_ns(ours.malloc, ours.free, count), 4_000),
        "pair from Python, dense": (lambda count: python_pair_ns(dense.malloc, dense.free, count), 4_000),
        "two empty calls": (lambda count: python_pair_ns(nothing.malloc, nothing.free, count), 4_000),
        "replacement among 256, from C": (lambda count: from_c.replacement_ns(LIVE, BLOCK, count), 10_000),
        "replacement among 256, from C, dense": (
            lambda count: dense_from_c.replacement_ns(LIVE, BLOCK, count),
            10_000,
        ),
        "replacement among 256, from Python": (replacing_in_python(replaced.malloc, replaced.free), 4_000),
        "the same on two empty calls": (replacing_in_python(nothing.malloc, nothing.free), 4_000),
        "churn among 1,000, from C": (lambda count: from_c.replacement_ns(1_000, BLOCK, count), 10_000),
        "eight threads on one device, from C": (on_threads([shared] * 8, BLOCK), 20_000),
        "two threads on a device each, from C": (on_threads(apart, BLOCK), 50_000),
        "churn among 1,000,000, from C": (lambda count: from_c.replacement_ns(1_000_000, BLOCK, count), 200_000),
    }


def answer() -> None:
    """Measure the figures named on standard input, a name per line."""
    threading.Thread(target=threading.Event().wait, daemon=True).start()  # locks are cheaper in a process without
    gc.disable()
    figures = measures()
    print(json.dumps(list(figures)), flush=True)
    for line in sys.stdin:
        measure, count = figures[line.strip()]
        print(min(measure(count) for _ in range(TAKINGS if count < 100_000 else 1)), flush=True)


def environment(source: Path) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(source), "PYTHONDONTWRITEBYTECODE": "1", "PYTHONHASHSEED": "0"}


def in_turns(sources: list[Path], rounds: int, only: str) -> None:
    trees = [
        subprocess.Popen(
            [sys.executable, __file__, "--answer"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=environment(source),
        )
        for source in sources
    ]

    def ask(tree: subprocess.Popen[str], name: str) -> float:
        assert tree.stdin and tree.stdout
        print(name, file=tree.stdin, flush=True)
        return float(tree.stdout.readline())

    names = next(iter([json.loads(tree.stdout.readline()) for tree in trees if tree.stdout]))  # each says them
    print(f"| ns | {' | '.join(map(str, sources))} |{' this / that |' * (len(sources) - 1)}")
    print("|---|" + "---|" * (2 * len(sources) - 1))
    for name in (name for name in names if only in name):
        taken = [[ask(tree, name) for tree in trees] for _ in range(rounds)]
        cells = [f"{statistics.median(column):.1f}" for column in zip(*taken, strict=True)]
        ratios = [statistics.median(row[0] / row[i] for row in taken) for i in range(1, len(trees))]
        print(f"| {name} | {' | '.join(cells + [f'{ratio:.2f}' for ratio in ratios])} |", flush=True)
    for tree in trees:
        if tree.stdin:
            tree.stdin.close()
        tree.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("sources", nargs="*", type=Path, metavar="SOURCE")
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--only", default="", metavar="WORDS", help="the figures whose names contain this")
    parser.add_argument("--answer", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer()
    else:
        in_turns([HERE, *options.sources], options.rounds, options.only)


if __name__ == "__main__":
    main()
