"""The cost of `allotment top` for the processes that it reads, and its own cost.

    python benchmarks/top.py --processes 8

Busy processes do nothing but pairs of `malloc` and `free`. In turns, in a changing order, they are not monitored,
monitored without a reader, and read every second and ten times a second. A pair's time is the median of runs of 2,000
pairs; a turn's figure is the lower quartile over all processes and rounds, because other programs on the machine only
add time. The processor time of an answer is measured separately, on a process that does nothing else: each reading
costs the pairs that much.
"""

from __future__ import annotations

import argparse
import random
import statistics
import subprocess
import sys
import time

BUSY = """
import sys, time
import allotment
settings = sys.argv[1]
allocator = allotment.Allocator("host", settings=settings)
kept = [allocator.malloc(1 << 12) for _ in range(10_000)]
malloc, free = allocator.malloc, allocator.free
for line in sys.stdin:
    seconds = float(line)
    times, end = [], time.monotonic() + seconds
    while time.monotonic() < end:
        start = time.perf_counter_ns()
        for _ in range(2000):
            free(malloc(5000))
        times.append(time.perf_counter_ns() - start)
    print(sorted(times)[len(times) // 2] / 2000, flush=True)
"""


IDLE = """
import sys, time
import allotment
allocator = allotment.Allocator("host", settings="monitor:True")
kept = [allocator.malloc(1 << 12) for _ in range(10_000)]
print("ready", flush=True)
for line in sys.stdin:
    print(time.process_time(), flush=True)
"""
LOOKS = 1000


def milliseconds_of_an_answer() -> float:
    """Return the processor time that a reading takes of the process that is read."""
    from allotment._monitor.asking import ask_all

    idle = subprocess.Popen([sys.executable, "-c", IDLE], stdin=-1, stdout=-1, text=True)
    assert idle.stdin is not None and idle.stdout is not None
    idle.stdout.readline()
    times = []
    for looks in (10, LOOKS):
        for _ in range(looks):
            assert ask_all()
        idle.stdin.write("\n")
        idle.stdin.flush()
        times.append(float(idle.stdout.readline()))
    idle.communicate()
    return 1000 * (times[1] - times[0]) / LOOKS


def start(settings: str, count: int) -> list[subprocess.Popen[str]]:
    command = [sys.executable, "-c", BUSY, settings]
    return [subprocess.Popen(command, stdin=-1, stdout=-1, text=True) for _ in range(count)]


def measure(busy: list[subprocess.Popen[str]], seconds: float, every: float | None) -> tuple[list[float], float, int]:
    """Return nanoseconds per pair of each process; processor seconds of the readings, and their number."""
    from allotment._monitor.asking import ask_all
    from allotment._monitor.overview import overview

    for each in busy:
        assert each.stdin is not None
        each.stdin.write(f"{seconds}\n")
        each.stdin.flush()
    looked, looks, before = 0.0, 0, []
    end = time.monotonic() + seconds
    while every is not None and time.monotonic() < end - every:
        time.sleep(every)
        began = time.process_time()
        found = ask_all()
        overview(found, before)
        before = found
        looked += time.process_time() - began
        looks += 1
    return [float(each.stdout.readline()) for each in busy if each.stdout is not None], looked, looks


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--processes", type=int, default=8)
    parser.add_argument("--seconds", type=float, default=4.0)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    from allotment._monitor.asking import ask_all

    began = time.process_time()
    for _ in range(100):
        ask_all()
    print(f"a look at a machine without any: {(time.process_time() - began) * 10:.3f} ms")
    print(f"an answer, of the process that is asked: {milliseconds_of_an_answer():.3f} ms")
    plain, watched = start("", given.processes), start("monitor:True", given.processes)
    turns = {
        "not monitored": (plain, None),
        "monitored, nobody looks": (watched, None),
        "looked at every second": (watched, 1.0),
        "looked at ten times a second": (watched, 0.1),
    }
    times: dict[str, list[float]] = {name: [] for name in turns}
    cost: dict[str, list[float]] = {name: [] for name in turns}
    for _ in range(given.rounds):
        for name, (busy, every) in random.sample(sorted(turns.items()), len(turns)):
            found, looked, looks = measure(busy, given.seconds, every)
            times[name] += found
            cost[name] += [looked / looks * 1000] if looks else []
    for each in plain + watched:
        each.communicate()
    base = statistics.quantiles(times["not monitored"])[0]
    for name, found in times.items():
        middle = statistics.quantiles(found)[0]
        own = f", a look takes {statistics.median(cost[name]):.2f} ms of top" if cost[name] else ""
        print(f"{name:30} {middle:7.1f} ns a pair ({middle / base - 1:+.2%}){own}")


if __name__ == "__main__":
    main()
