"""Whole processes under `allotment.preload`, next to the same programs natively, in one run of a few minutes.

    python benchmarks/gpu/preload_checks.py --out FOLDER [--only PART ...] [--seconds 430] [--kit FOLDER]

Each program is a process with its own time limit. What it tells is kept in FOLDER/preload.json when it has ended, and
FOLDER/preload.md, the tables, is written again. The parts, the most important first: ways, pairs, jax, thirty, both,
cap, ledger, cost, suites. A part that finds no time left is left out. `--kit` is the folder of PyTorch's own tests
with their `run.py`; they run in the time that is left.

The device's memory is polled from this process, which uses no GPU. The next program imports its modules while the one
before it runs; it uses the GPU only afterwards.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from preload_programs import PAIRS_IN_C
from preload_tables import CAP, FRAMEWORKS, LEDGERS, PARTS, Found, mib, tables

from allotment import preload as preload_module

HERE = Path(__file__).resolve().parent
PROGRAMS = HERE / "preload_programs.py"
SUITES = HERE.parents[1] / "tests" / "stress" / "foreign_suites.py"
MIB = 1 << 20
COUNT: list[str] = []
SERVE = ["--depth", "serve"]
JAX = [*SERVE, "--jax"]
QUIET = {"XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
# Two runs may choose other kernels by time, and then differ whatever allocates.
SAME_KERNELS = "--xla_gpu_autotune_level=0 --xla_gpu_deterministic_ops=true"


class Poll:
    """The memory in use on the device, asked of NVML every few milliseconds: (time, bytes)."""

    def __init__(self) -> None:
        self.seen: list[tuple[float, int]] = []
        self.device = "no NVML"
        self._stop = threading.Event()
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()
        self._ready.wait(10)
        self.before = self.now()

    def _run(self) -> None:
        try:
            self._poll()
        finally:
            self._ready.set()

    def _poll(self) -> None:
        try:
            nvml = ctypes.CDLL("libnvidia-ml.so.1")
            device, info = ctypes.c_void_p(), (ctypes.c_ulonglong * 3)()
            if nvml.nvmlInit_v2() or nvml.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(device)):
                return
            name, driver = ctypes.create_string_buffer(96), ctypes.create_string_buffer(96)
            if not nvml.nvmlDeviceGetName(device, name, 96) and not nvml.nvmlSystemGetDriverVersion(driver, 96):
                self.device = f"{name.value.decode()}, driver {driver.value.decode()}"
        except (OSError, AttributeError):
            return
        while not self._stop.wait(0.005):
            if nvml.nvmlDeviceGetMemoryInfo(device, info) == 0:
                self.seen.append((time.time(), info[2]))
            self._ready.set()

    def now(self) -> int | None:
        return self.seen[-1][1] if self.seen else None

    def highest(self, begin: float, end: float) -> int | None:
        return max((used for at, used in self.seen if begin <= at <= end), default=None)

    def wait_until_free(self) -> None:
        """Wait until the memory of programs that have ended has come back."""
        until = time.monotonic() + 3
        while self.before is not None and (self.now() or 0) > self.before + 16 * MIB and time.monotonic() < until:
            time.sleep(0.01)

    def stop(self) -> None:
        self._stop.set()
        self._thread.join()


@dataclass
class Run:
    """A program to run: the key of its facts, its arguments, and the options of `allotment.preload`; None: without."""

    key: str
    arguments: list[str]
    preload: list[str] | None = None
    seconds: float = 60
    variables: dict[str, str] = field(default_factory=dict)


class Process:
    """A program that has begun to import its modules."""

    def __init__(self, run: Run, out: Path, scratch: Path) -> None:
        self.run = run
        start = [sys.executable] if run.preload is None else [sys.executable, "-m", "allotment.preload", *run.preload]
        cache = {"JAX_COMPILATION_CACHE_DIR": str(scratch / "jax"),
                 "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0", "JAX_PERSISTENT_CACHE_ENABLE_XLA_CACHES": "none",
                 "JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES": "-1"}  # fmt: skip
        logs = out / "logs"
        name = "".join(character if character.isalnum() else "-" for character in run.key)
        self.output, self.errors = logs / f"{name}.out", logs / f"{name}.err"
        with self.output.open("w") as output, self.errors.open("w") as errors:
            self.process = subprocess.Popen(
                [*start, str(PROGRAMS), *run.arguments], stdin=subprocess.PIPE, stdout=output, stderr=errors,
                env=os.environ | {"XLA_FLAGS": SAME_KERNELS, "PRELOAD_CHECKS_WAIT": "1"} | cache | run.variables,
                start_new_session=True,
            )  # fmt: skip

    def go(self) -> None:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(b"\n")
            self.process.stdin.close()
        except BrokenPipeError:
            pass  # it has ended; its output says why

    def end(self, seconds: float) -> int | str:
        """Wait for the end, at most so long; return the exit code, or "timeout"."""
        try:
            return self.process.wait(max(1.0, seconds))
        except subprocess.TimeoutExpired:
            self.kill()
            return "timeout"

    def kill(self) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


class Checks:
    def __init__(self, out: Path, seconds: float, kit: Path | None) -> None:
        self.out = out
        self.kit = kit
        self.scratch = Path(tempfile.mkdtemp(prefix="preload-checks-"))
        self.until = time.monotonic() + seconds
        self.found: Found = {}
        self.parts: list[str] = []
        self.poll = Poll()

    def left(self) -> float:
        return self.until - time.monotonic()

    def keep(self, name: str, value: Any) -> None:
        self.found[name] = value
        print(f"{name}: {json.dumps(value)[:1500]}", flush=True)
        (self.out / "preload.json").write_text(json.dumps(self.found, indent=1))
        (self.out / "preload.md").write_text(tables(self.found))

    def facts(self, process: Process, code: int | str, begun: float) -> Found:
        """Return what a program told, by what it is about, with the device's peak between its marks."""
        found: Found = {"seconds": round(time.time() - begun, 1)}
        marks: dict[str, float] = {}
        for line in process.output.read_text(errors="replace").splitlines():
            if not line.startswith('{"what"'):
                continue
            try:
                facts = json.loads(line)
            except ValueError:
                continue  # it was ended in the middle of a line
            what, at = facts.pop("what"), facts.pop("at")
            if what == "begin":
                marks[facts["part"]] = at
            elif what == "end":
                found[f"peak_mib {facts['part']}"] = mib(self.poll.highest(marks[facts["part"]], at))
            else:
                found[what] = facts
        found["peak_mib"] = mib(self.poll.highest(begun, time.time()))
        errors = process.errors.read_text(errors="replace")
        said = [line for line in errors.splitlines() if "allotment" in line]
        if code != 0:
            found["ended"], found["errors"] = code, errors[-1500:]
        elif said:
            found["said"] = said[:5]
        return found

    def run_all(self, parts: list[str]) -> None:
        """Run the programs of a batch at the same time, and the batches one after the other."""
        batches: list[list[Run]] = []
        for part in parts:
            try:
                batches += plan(part, self.scratch)
            except Exception as error:
                self.keep(f"{part} failed", f"{type(error).__name__}: {error}")
        following = self.prepared(batches, 0)
        for number, batch in enumerate(batches):
            current, following = following, self.prepared(batches, number + 1)
            if self.left() < 5:
                for process in [*current, *following]:
                    process.kill()
                self.keep("no time from", batch[0].key)
                return
            self.poll.wait_until_free()
            begun = time.time()
            for process in current:
                process.go()
            for process in current:
                code = process.end(min(process.run.seconds - (time.time() - begun), self.left()))
                self.keep(process.run.key, self.facts(process, code, begun))
            print(f"--- {batch[0].key}: {time.time() - begun:.0f} s, {self.left():.0f} s left", flush=True)

    def prepared(self, batches: list[list[Run]], number: int) -> list[Process]:
        return [Process(run, self.out, self.scratch) for run in batches[number]] if number < len(batches) else []

    def suites(self) -> None:
        """Tests of frameworks, natively and counted at the same time."""
        seconds = min(self.left() - 20, 400)
        if seconds < 30:
            self.keep("no time for suites", True)
            return
        counted = os.environ | preload_module.environment()
        commands: dict[str, tuple[list[str], dict[str, str], Path]] = {}
        numba = [sys.executable, str(SUITES), "numba", "--preload"]
        commands["suite numba"] = (numba, dict(os.environ), HERE)
        if self.kit is not None:
            kit = self.scratch / "kit"
            shutil.copytree(self.kit, kit, dirs_exist_ok=True)
            jobs = str(max(1, (os.cpu_count() or 1) // 2 - 1))
            for name, variables in (("native", dict(os.environ)), ("counted", counted)):
                command = [
                    sys.executable, "run.py", "native", "--name", name, "--not-groups", "trees", "--jobs", jobs,
                    "--budget", str(int(seconds)), "--out", str((self.out / "torch").absolute()),
                    "--work", str(self.scratch / name),
                ]  # fmt: skip
                commands[f"suite torch {name}"] = (command, variables, kit)
        running = {}
        for key, (command, environment, folder) in commands.items():
            with (self.out / "logs" / f"{key.replace(' ', '-')}.out").open("w") as log:
                running[key] = subprocess.Popen(
                    command, env=environment, cwd=folder, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
                )
        until = time.monotonic() + seconds + 10
        for key, process in running.items():
            try:
                code: int | str = process.wait(max(1.0, until - time.monotonic()))
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                code = "timeout"
            log_lines = (self.out / "logs" / f"{key.replace(' ', '-')}.out").read_text(errors="replace").splitlines()
            self.keep(key, {"ended": code, "last": log_lines[-12:]})
        results = [self.out / "torch" / f"result.native.{name}.json" for name in ("native", "counted")]
        if all(path.exists() for path in results):
            self.keep("suite torch", compared(*(json.loads(path.read_text())["results"] for path in results)))


def compared(native: Found, counted: Found) -> Found:
    """Return how the outcomes of tests differ between two runs; tests that a run had no time for are left out."""
    both = [
        test
        for test in native
        if test in counted and "not run" not in (native[test]["status"], counted[test]["status"])
    ]
    passed = [sum(run[test]["status"] == "pass" for test in both) for run in (native, counted)]
    different = {test: [native[test]["status"], counted[test]["status"], counted[test]["message"][:300]]
                 for test in both if native[test]["status"] != counted[test]["status"]}  # fmt: skip
    return {"tests": len(both), "passed natively": passed[0], "passed counted": passed[1], "different": different}


# --- the parts: batches of programs, and the table of what they found ---

WAYS_OF_JAX: dict[str, tuple[list[str] | None, dict[str, str]]] = {
    "default": (None, {}),
    "ours": (JAX, {}),
    "default again": (None, {}),
    "ours again": (JAX, {}),
    "platform": (None, {"XLA_PYTHON_CLIENT_ALLOCATOR": "platform"}),
    "driver's pool": (None, {"XLA_PYTHON_CLIENT_ALLOCATOR": "cuda_async"} | QUIET),
}


def plan(part: str, scratch: Path) -> list[list[Run]]:
    if part == "ways":
        served = Run("ways jax served", ["ways", "jax"], JAX)
        return [[*(Run(f"ways {name}", ["ways", name], COUNT, 90, QUIET) for name in FRAMEWORKS), served]]
    if part == "pairs":
        library = str(scratch / "pairs.so")
        (scratch / "pairs.c").write_text(PAIRS_IN_C)
        subprocess.run(["gcc", "-O2", "-shared", "-fPIC", "-o", library, scratch / "pairs.c", "-ldl"], check=True)
        ways = (("native", None), ("count", COUNT), ("serve", SERVE))
        return [[Run(f"pairs {name}", ["pairs", library], preload, 30)] for name, preload in ways]
    if part == "jax":
        return [
            [Run(f"jax {name}", ["jax", "20"], preload, 110, variables)]
            for name, (preload, variables) in WAYS_OF_JAX.items()
        ]
    if part == "thirty":
        return [[Run("thirty default", ["thirty"], None, 120)], [Run("thirty ours", ["thirty"], JAX, 120)]]
    if part == "both":
        limited = [*JAX, "--limit", "9GiB"]
        return [[Run("both natively", ["both"], None, 60, QUIET)], [Run("both ours", ["both", "ours"], limited, 60)]]
    if part == "cap":
        capped = [[Run(f"cap {name}", ["take_all", name], ["--limit", str(CAP)])] for name in ("torch", "cupy", "jax")]
        return [[Run("cap natively", ["take_all", "torch"])], *capped]
    if part == "ledger":
        return [[Run(f"ledger {name}", [name], COUNT, 60, QUIET)] for name in LEDGERS]
    if part == "cost":
        ways = (("native", None), ("count", COUNT))
        return [[Run(f"cost {name} {turn}", ["cost"], preload, 40)] for turn in (1, 2, 3) for name, preload in ways]
    return []


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--only", nargs="*", choices=list(PARTS), default=list(PARTS))
    parser.add_argument("--seconds", type=float, default=430)
    parser.add_argument("--kit", type=Path, help="PyTorch's own tests of its allocator, with run.py")
    options = parser.parse_args()
    (options.out / "logs").mkdir(parents=True, exist_ok=True)
    checks = Checks(options.out, options.seconds, options.kit)
    machine = f"{checks.poll.device}, {os.cpu_count()} cores, Python {platform.python_version()}"
    checks.keep("machine", f"{machine}, {time.strftime('%Y-%m-%d')}")
    checks.keep("device MiB before", mib(checks.poll.before))
    checks.run_all([part for part in options.only if part != "suites"])
    if "suites" in options.only:
        checks.suites()
    checks.poll.stop()
    shutil.rmtree(checks.scratch, ignore_errors=True)
    print(tables(checks.found))


if __name__ == "__main__":
    main()
