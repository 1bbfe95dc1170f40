"""NumPy's work on large arrays: with its own memory, on an allocator, and with glibc tuned by its environment.

    python benchmarks/numpy_arrays.py [--sizes 1 8 32 64 256] [--rounds 7] [--out results.json]

For each size four new processes do the same work in turns, one operation at a time, so that a disturbance affects all
four. A different one begins in each round, so that none finds its arrays in the processor's cache more often than the
others. Figures are the default's time over the process's time in the same round, so 2.0 is twice as fast; a row shows
the median of its rounds. `control` is like the default, but writes into existing memory: the largest possible gain.
pandas is used if it is installed. Resident memory is measured at the end, then after the idle policy.
"""

import argparse
import json
import os
import resource
import statistics
import subprocess
import sys
import time

MIB = 1 << 20
IDLE_SECONDS = 4.0
TUNED = {
    "MALLOC_MMAP_THRESHOLD_": str(1 << 30),
    "MALLOC_TRIM_THRESHOLD_": str(4 << 30),
    "MALLOC_TOP_PAD_": str(64 << 20),
}
CONTROL = "control"
KINDS = ("default", "allotment", "tuned", CONTROL)


def operations(size: int):
    """Return {name: (with new memory, the same into existing memory)} on arrays of `size` bytes."""
    import numpy as np

    count = size // 8
    draw = np.random.default_rng(0)
    a, b, c = draw.random(count), draw.random(count), draw.random(count)
    out, second = np.empty(count), np.empty(count)
    spectrum = np.empty(count // 2 + 1, complex)
    points = draw.random((count // 8, 8))
    centers = draw.random((8, 8))

    def expression():
        return a * b + c

    def expression_into():
        np.multiply(a, b, out)
        return np.add(out, c, out)

    def chain():
        x = a
        for _ in range(5):
            x = x * b
            x = x + c
        return x

    def chain_into():
        np.multiply(a, b, out)
        np.add(out, c, second)
        for _ in range(4):
            np.multiply(second, b, out)
            np.add(out, c, second)

    def sort_into():
        out[:] = a
        out.sort()

    def k_means():
        distances = ((points[:, None, :4] - centers[None, :, :4]) ** 2).sum(axis=2)
        nearest = distances.argmin(axis=1)
        return np.stack([points[nearest == k].mean(axis=0) for k in range(8)])

    def write(array, value):
        array[:] = value

    chosen = {
        "a*b+c": (expression, expression_into),
        "chain of 10": (chain, chain_into),
        "np.sort": (lambda: np.sort(a), sort_into),
        "rfft": (lambda: np.fft.rfft(a), lambda: np.fft.rfft(a, out=spectrum)),
        "k-means step": (k_means, None),
        "zeros": (lambda: np.zeros(count), None),
        "zeros, written": (lambda: write(np.zeros(count), 1.0), lambda: write(out, 1.0)),
        "full": (lambda: np.full(count, 2.0), lambda: write(out, 2.0)),
        "copy": (lambda: a.copy(), lambda: write(out, a)),
    }
    try:
        import pandas
    except ImportError:
        return chosen
    frame = pandas.DataFrame({"key": draw.integers(0, 100, count // 4), "x": a[: count // 4], "y": b[: count // 4]})
    chosen["group-by"] = (lambda: (frame.assign(z=frame.x * frame.y)).groupby("key").mean(), None)
    return chosen


def resident(key: str = "VmRSS") -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(key))


def worker(kind: str, size: int) -> None:
    """Do the operations named on standard input, one per line, and report their time."""
    if kind == "allotment":
        import allotment.numpy

        allotment.numpy.install(idle_seconds=IDLE_SECONDS)
    chosen = operations(size)
    print(json.dumps(list(chosen)), flush=True)
    for line in sys.stdin:
        name, which = json.loads(line)
        if name == "memory":
            result = [resident(), resident("VmHWM")]
        elif name == "idle":
            time.sleep(2.5 * IDLE_SECONDS)
            result = [resident(), resident("VmHWM")]
        else:
            run = chosen[name][which]
            result = None
            if run is not None:
                faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
                start = time.perf_counter()
                run()
                took = time.perf_counter() - start
                result = [took, resource.getrusage(resource.RUSAGE_SELF).ru_minflt - faults]
        print(json.dumps(result), flush=True)


class Worker:
    def __init__(self, kind: str, size: int) -> None:
        environment = {**os.environ, **(TUNED if kind == "tuned" else {})}
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        command = [sys.executable, __file__, "--worker", kind, "--sizes", str(size // MIB)]
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
        )
        self.operations = json.loads(self.process.stdout.readline())

    def ask(self, name: str, which: int = 0):
        self.process.stdin.write(json.dumps([name, which]) + "\n")
        self.process.stdin.flush()
        return json.loads(self.process.stdout.readline())

    def end(self) -> None:
        self.process.stdin.close()
        self.process.wait()


def measure(size: int, rounds: int) -> dict:
    workers = {kind: Worker(kind, size) for kind in KINDS}
    rows = {}
    for name in workers["default"].operations:
        repeats = 1 if name in ("np.sort", "group-by", "k-means step") and size > 32 * MIB else max(1, 16 * MIB // size)
        times: dict[str, list[float]] = {kind: [] for kind in KINDS}
        faults: dict[str, list[int]] = {kind: [] for kind in KINDS}
        for turn in range(rounds + 1):
            first = turn % len(KINDS)
            for kind in (*KINDS[first:], *KINDS[:first]):
                samples = [workers[kind].ask(name, int(kind == CONTROL)) for _ in range(repeats)]
                if turn and samples[0] is not None:  # the first turn warms up
                    times[kind].append(min(took for took, _ in samples))
                    faults[kind].append(samples[-1][1])
        rows[name] = {
            "seconds": statistics.median(times["default"]),
            "over_default": {
                kind: statistics.median(base / took for base, took in zip(times["default"], found, strict=True))
                for kind, found in times.items()
                if found
            },
            "page_faults": {kind: statistics.median(found) for kind, found in faults.items() if found},
        }
    memory = {}
    for kind, asked in workers.items():
        if kind != CONTROL:
            at_end, peak = asked.ask("memory")
            memory[kind] = {"at_end": at_end, "peak": peak, "after_idle": asked.ask("idle")[0]}
        asked.end()
    return {"mib": size // MIB, "rows": rows, "memory": memory}


def show(found: dict) -> None:
    print(f"\n{found['mib']} MiB: times over default (more is faster), page faults")
    print(f"{'':16} {'default':>10} {'allotment':>10} {'tuned':>8} {'control':>8}   faults: default  allotment  tuned")
    for name, row in found["rows"].items():
        over, faults = row["over_default"], row["page_faults"]
        control = f"{over[CONTROL]:8.2f}" if CONTROL in over else " " * 8
        print(
            f"{name:16} {row['seconds'] * 1e3:8.2f}ms {over['allotment']:10.2f} {over['tuned']:8.2f} {control}"
            f"   {faults['default']:15.0f} {faults['allotment']:10.0f} {faults['tuned']:6.0f}"
        )
    peak = found["memory"]["default"]["peak"]
    for kind, memory in found["memory"].items():
        print(
            f"  resident, {kind}: {memory['at_end'] / peak:.2f} of the default's peak at the end,"
            f" {memory['after_idle'] / peak:.2f} later (peak {memory['peak'] / peak:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 8, 32, 64, 256], help="of one array, in MiB")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--out")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    chosen = parser.parse_args()
    if chosen.worker:
        worker(chosen.worker, chosen.sizes[0] * MIB)
        return
    found = []
    for mib in chosen.sizes:
        found.append(measure(mib * MIB, chosen.rounds))
        show(found[-1])
    if chosen.out:
        with open(chosen.out, "w") as file:
            json.dump(found, file, indent=1)


if __name__ == "__main__":
    main()
