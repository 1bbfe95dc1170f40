"""Whole processes under `allotment.preload`, next to the same programs natively.

    python benchmarks/gpu/preload_checks.py --out FOLDER [--only PART ...] [--seconds 240]

Parts, each with its share of the time: pairs, cap, jax, both, ledger, cost. Each result is printed at once and stored
in FOLDER/preload.json. The device's memory is polled from this process, which uses no GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from preload_programs import PAIRS_IN_C

PROGRAMS = Path(__file__).parent / "preload_programs.py"
# Two runs may choose kernels by time, and then differ under any allocator.
SAME_KERNELS = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"
MIB = 1 << 20


class Poll:
    """The memory in use on the device, from NVML every few milliseconds: (time, bytes)."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.source = "none"
        self._thread.start()

    def _run(self) -> None:
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            device, info = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
            if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
                return
        except OSError:
            return
        self.source = "NVML"
        while not self._stop.wait(0.005):
            if nvml.nvmlDeviceGetMemoryInfo(device, info) == 0:
                self.seen.append((time.time(), info[2]))

    def highest(self, begin: float, end: float) -> int | None:
        return max((used for at, used in self.seen if begin <= at <= end), default=None)

    def lowest(self) -> int | None:
        return min((used for _, used in self.seen), default=None)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


class Checks:
    def __init__(self, out: Path, seconds: float) -> None:
        self.out = out
        self.until = time.monotonic() + seconds
        self.found: dict[str, Any] = {}
        self.poll = Poll()

    def left(self) -> float:
        return self.until - time.monotonic()

    def keep(self, name: str, value: Any) -> None:
        self.found[name] = value
        print(f"{name}: {json.dumps(value)[:3000]}", flush=True)
        (self.out / "preload.json").write_text(json.dumps(self.found, indent=1))

    def run(
        self, *arguments: str, preload: list[str] | None = None, seconds: float = 60, **variables: str
    ) -> dict[str, Any]:
        """Return a program's lines by their topic, with the device's peak between its marks."""
        start = [sys.executable] if preload is None else [sys.executable, "-m", "allotment.preload", *preload]
        environment = os.environ | {"XLA_FLAGS": SAME_KERNELS} | variables
        begun = time.time()
        try:
            done = subprocess.run(
                [*start, str(PROGRAMS), *arguments], env=environment, capture_output=True, text=True,
                timeout=max(5, min(seconds, self.left())),
            )  # fmt: skip
            output, errors, code = done.stdout, done.stderr, done.returncode
        except subprocess.TimeoutExpired as error:
            output, errors, code = str(error.stdout or ""), str(error.stderr or ""), "timeout"
        found: dict[str, Any] = {"seconds": round(time.time() - begun, 1)}
        marks: dict[str, float] = {}
        for line in output.splitlines():
            if not line.startswith("{"):
                continue
            facts = json.loads(line)
            what, at = facts.pop("what"), facts.pop("at")
            if what == "begin":
                marks[facts["part"]] = at
            elif what == "end":
                found[f"peak_mib {facts['part']}"] = self.mib(self.poll.highest(marks[facts["part"]], at))
            else:
                found[what] = facts
        found["peak_mib"] = self.mib(self.poll.highest(begun, time.time()))
        ours = [line for line in errors.splitlines() if "allotment" in line]
        if code != 0:
            found["ended"], found["errors"] = code, errors[-1500:]
        elif ours:
            found["said"] = ours[:5]
        return found

    @staticmethod
    def mib(size: int | None) -> int | None:
        return None if size is None else size // MIB

    # --- parts ---

    def pairs(self) -> None:
        (self.out / "pairs.c").write_text(PAIRS_IN_C)
        library = str((self.out / "pairs.so").absolute())
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, self.out / "pairs.c", "-ldl"], check=True)
        for name, preload in (("native", None), ("count", []), ("serve", ["--depth", "serve"])):
            self.keep(f"pairs {name}", self.run("pairs", library, preload=preload, seconds=30))

    def cap(self) -> None:
        others = self.mib(self.poll.lowest())
        self.keep("device used by others MiB", others)
        self.keep("natively torch", self.run("take_all", "torch", seconds=60))
        for name in ("torch", "cupy", "jax"):
            run = self.run("take_all", name, preload=["--limit", "8GiB"], seconds=60)
            if others is not None and run["peak_mib"] is not None:
                run["within"] = run["peak_mib"] - others <= 8 << 10
            self.keep(f"cap 8 GiB {name}", run)

    def jax(self) -> None:
        ways: dict[str, tuple[list[str] | None, dict[str, str]]] = {
            "default": (None, {}),
            "ours": (["--depth", "serve", "--jax"], {}),
            "platform": (None, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
            "driver's pool": (
                None,
                {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"},
            ),
        }
        for name, (preload, variables) in ways.items():
            self.keep(f"jax {name}", self.run("jax", "20", preload=preload, seconds=110, **variables))
        default, ours, platform, pool = (self.found[f"jax {name}"] for name in ways)
        if all("train" in run for run in (default, ours, platform, pool)):
            rate = {name: max(self.found[f"jax {name}"]["train"]["steps_per_s"]) for name in ways}
            compared = (("train", "parameters"), ("train", "losses"), ("grow", "outputs"))
            same = all(default.get(part, {}).get(key) == ours.get(part, {}).get(key) for part, key in compared)
            self.keep("jax compared", {
                "bit_equal": same, "ours / default": round(rate["ours"] / rate["default"], 4),
                "ours / platform": round(rate["ours"] / rate["platform"], 3),
                "ours / driver's pool": round(rate["ours"] / rate["driver's pool"], 3), "rates": rate,
                "peaks_mib": {
                    name: {key: mib for key, mib in self.found[f"jax {name}"].items() if key.startswith("peak")}
                    for name in ways
                },
            })  # fmt: skip
        if "thirty" in default and "thirty" in ours:
            theirs, mine = default["thirty"]["outcomes"], ours["thirty"]["outcomes"]
            self.keep("thirty compared", {
                "programs": len(theirs), "same": sum(theirs[n] == mine.get(n) for n in theirs),
                "different": {n: [theirs[n], mine.get(n), platform.get("thirty", {}).get("outcomes", {}).get(n)]
                              for n in theirs if theirs[n] != mine.get(n)},
            })  # fmt: skip

    def both(self) -> None:
        native = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
        self.keep("both natively", self.run("both", seconds=60, **native))
        self.keep("both ours, 9 GiB", self.run("both", "ours", seconds=90,
                  preload=["--depth", "serve", "--limit", "9GiB", "--jax"]))  # fmt: skip

    def ledger(self) -> None:
        for name in ("gpt2", "ddp", "cudnn", "jax_ledger", "cupy"):
            quiet = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"} if name.startswith("jax") else {}
            run = self.run(name, preload=[], seconds=60, **quiet)
            facts = run.get("ledger", {})
            if facts.get("total"):
                run["unexplained_share"] = round(facts["unexplained"] / facts["total"], 5)
                run["within"] = facts["unexplained"] <= max(facts["total"] * 0.01, 64 * MIB)
            self.keep(f"ledger {name}", run)

    def cost(self) -> None:
        runs: dict[str, list[Any]] = {"native": [], "count": []}
        for _ in range(4):
            for name, preload in (("native", None), ("count", [])):
                runs[name].append(self.run("cost", preload=preload, seconds=40).get("cost"))
        self.keep("cost", runs)


PARTS = ("pairs", "cap", "jax", "both", "ledger", "cost")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=240)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    checks = Checks(options.out, options.seconds)
    for part in options.only:
        if checks.left() < 5:
            checks.keep(f"{part} left out", "no time")
            continue
        begun = time.monotonic()
        try:
            work: Callable[[], None] = getattr(checks, part)
            work()
        except Exception as error:
            checks.keep(f"{part} failed", f"{type(error).__name__}: {error}")
        print(f"--- {part}: {time.monotonic() - begun:.0f} s", flush=True)
    checks.poll.stop()


if __name__ == "__main__":
    main()
