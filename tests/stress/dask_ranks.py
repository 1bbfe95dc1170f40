"""Forty ranks on a Dask cluster of two workers, one of which is killed in the middle: the results must be complete.

    python tests/stress/dask_ranks.py [--ranks 40]

Starts a scheduler and two workers on loopback, in separate processes. When a quarter of the files is done, one
worker gets SIGKILL. The figures of all files, and what `tune` finds for them, must then equal those of local processes.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import allotment
from allotment.lab.ranks.figures import figures_of
from allotment.lab.ranks.files import snapshot_files
from allotment.lab.ranks.together import tune_together
from allotment.lab.ranks.workers import for_each_file
from allotment.lab.tune.search import Goal

MIB = 1 << 20
WORKERS = 2


def record(folder: Path, ranks: int, steps: int = 400) -> None:
    """Write a snapshot for each rank: batches of changing size, a little larger on each rank than on the one before."""
    for rank in range(ranks):
        allocator = allotment.Allocator("sim:64GiB", settings="compat:2.11")
        allocator.record_history()
        choose = random.Random(rank)
        kept = [allocator.malloc((20 + rank) * MIB) for _ in range(4)]
        for _ in range(steps):
            size = choose.randrange(1, 60) * MIB
            blocks = [allocator.malloc(size // part) for part in (1, 2, 3)]
            for block in blocks:
                allocator.free(block)
        allocator.history.dump_snapshot(folder / f"rank{rank}.pickle")
        for block in kept:
            allocator.free(block)


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", "distributed.cli.dask_" + arguments[0], *arguments[1:]],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )


def address_in(place: Path) -> str | None:
    """Return what the scheduler has written; None before that, and while it is writing."""
    try:
        return str(json.loads(place.read_text())["address"])
    except (FileNotFoundError, json.JSONDecodeError):
        return None


def run(ranks: int) -> dict[str, object]:
    """Raises AssertionError if anything is missing or different."""
    processes: list[subprocess.Popen[bytes]] = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        record(folder, ranks)
        files = snapshot_files([str(folder)])
        assert len(files) == ranks
        place = folder / "scheduler.json"
        try:
            processes.append(
                start(
                    "scheduler", "--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(place)
                )
            )
            address = address_in(place)
            while address is None:
                assert processes[0].poll() is None, "the scheduler has ended"
                address = address_in(place)
            workers = [
                start("worker", address, "--host", "127.0.0.1", "--nthreads", "1", "--no-nanny", "--no-dashboard")
                for _ in range(WORKERS)
            ]
            processes += workers
            killed: list[int] = []

            def watch(what: str) -> None:
                if not killed and int(what.split()[0]) >= ranks // 4:
                    os.kill(workers[0].pid, signal.SIGKILL)
                    killed.append(workers[0].pid)

            begin = time.perf_counter()
            far = for_each_file(files, figures_of, address, watch)
            seconds = time.perf_counter() - begin
            assert killed, "no worker was killed"
            near = for_each_file(files, figures_of)
            assert far == near, "the cluster and this machine differ"
            assert all(each.error is None for each in far)
            goal = Goal.parse("min-memory")
            tuned_far = tune_together(files, goal, 10.0, address)
            tuned_near = tune_together(files, goal, 10.0)
            assert tuned_far.ranks == tuned_near.ranks
            assert tuned_far.tuned.best == tuned_near.tuned.best
            return {
                "ranks": ranks,
                "seconds_on_the_cluster": round(seconds, 2),
                "deciding": Path(tuned_far.deciding).name,
                "best": tuned_far.tuned.best.settings,
                "equal": True,
            }
        finally:
            for process in processes:
                process.kill()
            for process in processes:
                process.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=40)
    print(json.dumps(run(parser.parse_args().ranks)))


if __name__ == "__main__":
    main()
