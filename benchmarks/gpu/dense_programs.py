"""All that shows dense placement on a GPU: eight programs, repeated outputs, every word watched, the smallest device.

    python benchmarks/gpu/dense_programs.py --out FOLDER [--seconds 570] [--parts NAME ...] [--program NAME ...]

costs      what driver calls cost on this machine; driver times below are counted calls with these costs
speed      the programs of `eight_programs.py` under PyTorch's allocator, plain and expandable, and under dense
           placement: each run is a process of its own, the kinds take turns, one process runs at a time
half       `tests/gpu/half_precision_repeats.py`
stress     `tests/gpu/dense_stress.py` with streams that are destroyed, and with graphs, and a little of it under
           compute-sanitizer, if that is installed
smallest   each program recorded and replayed: driver time, and the smallest device; then run with a limit of that

The last three run at the same time, because nothing is timed there. Parts write FOLDER/results.json and
FOLDER/summary.md anew after each result, so that a run that is cut off loses only what it was doing. Exits with 1 if
an output differs that the default repeats, if a word was wrong, or if something failed. `--dry` runs everything that
can run without a GPU, in small sizes.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from eight_programs import PROGRAMS, WARM, Place
from sleep_all import Part, last_line
from sleep_all import run as run_part

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests" / "gpu"
MIB = 1 << 20
PAGE = 2 * MIB
DEFAULT, EXPANDABLE, DENSE = "default", "expandable", "dense"
KINDS = (DEFAULT, EXPANDABLE, DENSE)
REPLAYED = {DEFAULT: "", EXPANDABLE: "expandable_segments:True", DENSE: "placement:dense"}
PARTS = ("costs", "speed", "half", "stress", "smallest")
AT_ONCE = 4
"""Programs whose runs are all started, and have loaded PyTorch, before the first of them begins."""
LOADING_SECONDS = 150.0
"""The most that loading PyTorch may take, in as many processes at once."""
RUN_SECONDS = 90.0
"""The most that one run may take."""
TOGETHER_SECONDS = 200.0
"""What is kept for the parts that run at the same time."""


# --- one run, in a process of its own -----------------------------------------------------------------------------


def work(program: str, kind: str, limit: int, record: str, dry: bool) -> None:
    warnings.simplefilter("ignore")
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    memory: Any = torch.cuda
    if kind == DENSE and not dry:
        from allotment.torch import memory
        from allotment.torch._install import install

        install(settings="placement:dense")
    # Deterministic where there is a choice. Filling fresh tensors would hide what a reused block still holds.
    torch.use_deterministic_algorithms(True, warn_only=True)
    torch.utils.deterministic.fill_uninitialized_memory = False
    torch.backends.cudnn.benchmark = False
    if dry:
        torch.set_num_threads(1)
    else:
        torch.cuda.init()
        total = torch.cuda.mem_get_info()[1]
    if record and not dry:
        torch.cuda.memory._record_memory_history(max_entries=4_000_000, stacks="python", context=None)
    if limit and not dry:
        memory.set_per_process_memory_fraction(limit / total)
    print("ready", flush=True)
    sys.stdin.readline()
    outputs, units, times = [], [], []
    began = start = time.perf_counter()
    try:
        for output, count in PROGRAMS[program](Place("cpu" if dry else "cuda", small=dry)):
            outputs.append(output.item())  # waits for the GPU
            times.append(time.perf_counter() - start)
            units.append(count)
            start = time.perf_counter()
    except torch.OutOfMemoryError:
        print(json.dumps({"out_of_memory": True}))
        return
    result: dict[str, Any] = {
        "outputs": outputs, "units": units, "seconds": times, "all_seconds": time.perf_counter() - began,
        "torch": torch.__version__,
    }  # fmt: skip
    if not dry:
        if record:
            torch.cuda.memory._dump_snapshot(record)
        result |= {
            "peak_reserved": memory.max_memory_reserved(),
            "peak_allocated": memory.max_memory_allocated(),
            "gpu": torch.cuda.get_device_name(),
        }
        if kind == DENSE:
            import allotment

            stats = allotment.current("cuda:0").stats()
            result["dense"] = {key: value for key, value in stats.items() if key.startswith("dense.")}
    print(json.dumps(result), flush=True)
    os._exit(0)  # nothing of what follows is measured, and graphs and process groups take long to end


def foretell(record: str) -> None:
    """Print what a replay of a recorded run says."""
    sys.path.insert(0, str(ROOT / "benchmarks" / "dense"))
    from compare import least_reserved

    from allotment.lab.replay.run import read_recording

    recording = read_recording(record)
    runs = {kind: recording.replay(settings) for kind, settings in REPLAYED.items()}
    live = runs[DEFAULT].recorded_peak_active_bytes
    print(json.dumps({
        "live": live,
        "held": max(live, least_reserved(recording)),
        "requests": len(recording.calls) // 2,
        "reserved": {kind: run.peak_reserved_bytes for kind, run in runs.items()},
        "driver_ms": {kind: run.driver_ms for kind, run in runs.items()},
        "smallest": {kind: recording.fit(settings) for kind, settings in REPLAYED.items()},
    }))  # fmt: skip


class Run:
    """A child that waits for the word to begin."""

    def __init__(self, arguments: Sequence[str], kind: str = DEFAULT, costs: Path | None = None) -> None:
        environment = os.environ | {
            "PYTORCH_CUDA_ALLOC_CONF": REPLAYED[EXPANDABLE] if kind == EXPANDABLE else "",
            "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
            "HF_HUB_OFFLINE": "1",
        }
        environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
        if costs is not None and costs.exists():
            environment["ALLOTMENT_COSTS"] = str(costs)
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            [sys.executable, __file__, *arguments], env=environment, stdin=pipe, stdout=pipe, stderr=pipe, text=True
        )
        self.complaints = ""
        # Read while it runs, or a child that complains much would wait for a reader.
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.complaints = (self.complaints + line)[-4000:]

    def result(self, seconds: float) -> dict[str, Any]:
        """Let it begin, and return what it printed last, or how it failed."""
        assert self.process.stdout is not None
        assert self.process.stdin is not None
        clock = threading.Timer(seconds, self.process.kill)
        clock.start()
        try:
            lines = []
            try:
                self.process.stdin.write("go\n")
                self.process.stdin.flush()
            except BrokenPipeError:
                pass  # what it said before it ended is read below
            lines = self.process.stdout.read().strip().splitlines()
            code = self.process.wait()
        finally:
            clock.cancel()
        self._reader.join(1)
        if code == 0 and lines and lines[-1].startswith("{"):
            found: dict[str, Any] = json.loads(lines[-1])
            return found
        return {"failed": f"ended with {code} within {seconds:.0f} s: {self.complaints.strip()[-600:]}"}

    def wait_until_ready(self) -> None:
        assert self.process.stdout is not None
        clock = threading.Timer(LOADING_SECONDS, self.process.kill)
        clock.start()
        self.process.stdout.readline()
        clock.cancel()


def worker(program: str, kind: str, dry: bool, limit: int = 0, record: str = "-") -> list[str]:
    return ["--worker", program, kind, str(limit), record, str(int(dry))]


# --- the report ---------------------------------------------------------------------------------------------------


class Report:
    """What was found so far, kept as JSON and as tables."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.found: dict[str, Any] = {"speed": {}, "smallest": {}, "notes": [], "parts": {}}
        self._lock = threading.Lock()

    def keep(self, part: str, name: str, value: Any) -> None:
        with self._lock:
            self.found[part][name] = value
            self._write()

    def note(self, text: str) -> None:
        print(text, flush=True)
        with self._lock:
            self.found["notes"].append(text)
            self._write()

    def _write(self) -> None:
        (self.folder / "results.json").write_text(json.dumps(self.found, indent=1) + "\n")
        try:
            text = summary(self.found, self.folder)
        except Exception as error:  # what was measured is kept, and what is still to come is measured
            text = f"the tables cannot be made: {error!r}; results.json has everything\n"
        (self.folder / "summary.md").write_text(text)


def median_speed(runs: list[dict[str, Any]], warm: int) -> float:
    return statistics.median(sum(run["units"][warm:]) / sum(run["seconds"][warm:]) for run in runs)


def best_speed(runs: list[dict[str, Any]], warm: int) -> float:
    """Units a second if every step took as long as in the best round: a step is the same work in all of them."""
    seconds = [min(steps) for steps in zip(*(run["seconds"] for run in runs), strict=True)]
    return sum(runs[0]["units"][warm:]) / sum(seconds[warm:])


def outputs_verdict(runs: dict[str, list[dict[str, Any]]]) -> str:
    """Whether a kind's outputs equal the default's in every bit, where the default repeats itself."""
    first = runs[DEFAULT][0]["outputs"]
    same = {kind: all(run["outputs"] == first for run in runs[kind]) for kind in KINDS}
    if all(same.values()):
        return "equal"
    if not same[DEFAULT]:
        return "default itself differs"
    return ", ".join(f"{kind} differs" for kind in KINDS if not same[kind])


def is_complete(runs: dict[str, list[dict[str, Any]]]) -> bool:
    return all(runs[kind] and all(run.get("outputs") for run in runs[kind]) for kind in KINDS)


def within_goal(reserved: int, live: int) -> bool:
    """At most 4 % more than live; below 1 GiB, at most 16 MiB more if that is more."""
    return reserved <= 1.04 * live or (live < 1 << 30 and reserved <= live + 16 * MIB)


def speed_table(found: dict[str, Any]) -> list[str]:
    titles = ["program", "live MiB", *(f"{kind} reserved" for kind in KINDS)]
    titles += ["expandable speed", "dense speed", "best of each step", "outputs"]
    titles += [f"{kind} driver, % of the time" for kind in KINDS] + ["within the goal"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    ratios = []
    for program, runs in found["speed"].items():
        if not is_complete(runs):
            failed = next((run for kind in KINDS for run in runs[kind] if not run.get("outputs")), "not all have run")
            lines.append(f"| {program} | {str(failed)[:300]!r} |" + " |" * (len(titles) - 2))
            continue
        warm = WARM[program] if len(runs[DEFAULT][0]["units"]) > WARM[program] else 0
        cells = [program]
        if "peak_reserved" in runs[DENSE][0]:
            live = {kind: max(run["peak_allocated"] for run in runs[kind]) for kind in KINDS}
            reserved = {kind: max(run["peak_reserved"] for run in runs[kind]) for kind in KINDS}
            cells += [f"{live[DENSE] / MIB:,.0f}", *(f"{reserved[kind] / live[kind]:.3f}" for kind in KINDS)]
            ratios.append(reserved[DENSE] / live[DENSE])
            within = "yes" if within_goal(reserved[DENSE], live[DENSE]) else "no"
        else:
            cells += ["-"] * 4
            within = "-"
        median = {kind: median_speed(runs[kind], warm) for kind in KINDS}
        cells += [f"{median[kind] / median[DEFAULT]:.3f}" for kind in (EXPANDABLE, DENSE)]
        cells += [f"{best_speed(runs[DENSE], warm) / best_speed(runs[DEFAULT], warm):.3f}", outputs_verdict(runs)]
        replayed = found["smallest"].get(program, {}).get("driver_ms")
        for kind in KINDS:
            seconds = statistics.median(run["all_seconds"] for run in runs[kind])
            cells.append(f"{replayed[kind] / seconds / 10:.3f}" if replayed else "-")
        cells.append(within)
        lines.append("| " + " | ".join(cells) + " |")
    if ratios:
        mean = math.exp(sum(map(math.log, ratios)) / len(ratios))
        lines += ["", f"Dense placement, geometric mean: {mean:.4f} of what is live, {max(ratios):.4f} at most."]
    return lines


def smallest_table(found: dict[str, Any]) -> list[str]:
    titles = ["program", "held MiB", *(f"{kind} smallest" for kind in KINDS), "dense MiB more"]
    titles += [f"{kind} driver ms" for kind in KINDS] + ["run with these limits (MiB: completed)"]
    lines = ["| " + " | ".join(titles) + " |", "|" + "---|" * len(titles)]
    for program, one in found["smallest"].items():
        if "held" not in one:
            lines.append(f"| {program} | {str(one)[:300]!r} |" + " |" * (len(titles) - 2))
            continue
        held = one["held"]
        cells = [program, f"{held / MIB:,.0f}"]
        cells += [f"{one['smallest'][kind] / held:.4f}" if one["smallest"][kind] else "none" for kind in KINDS]
        cells.append(f"{((one['smallest'][DENSE] or 0) - held) / MIB:.1f}")
        cells += [f"{one['driver_ms'][kind]:.1f}" for kind in KINDS]
        runs = [f"{kind} {limit / MIB:,.0f}: {outcome}" for kind, limit, outcome in one.get("limited", [])]
        lines.append("| " + " | ".join([*cells, "; ".join(runs)]) + " |")
    return lines


def summary(found: dict[str, Any], folder: Path) -> str:
    first = next((run for runs in found["speed"].values() for run in runs[DENSE] if "torch" in run), {})
    lines = [f"# Dense placement on {first.get('gpu', 'a GPU')}", "", f"PyTorch {first.get('torch', '')}.", ""]
    lines += ["## Eight programs", "", *speed_table(found), ""]
    lines += ["## The smallest device", "", *smallest_table(found), ""]
    lines += ["## Other parts", "", "| part | outcome | last line |", "|---|---|---|"]
    lines += [f"| {name} | {outcome} |" for name, outcome in found["parts"].items()]
    half = folder / "half.md"
    if half.exists():
        lines += ["", half.read_text()]
    return "\n".join([*lines, "", *found["notes"]]) + "\n"


# --- the parts ----------------------------------------------------------------------------------------------------


def measure_speed(programs: list[str], rounds: int, dry: bool, report: Report, left: Callable[[], float]) -> bool:
    good = True
    kinds = [kind for turn in range(rounds) for kind in (reversed(KINDS) if turn % 2 else KINDS)]
    for at in range(0, len(programs), AT_ONCE):
        some = programs[at : at + AT_ONCE]
        waiting = [(program, kind, Run(worker(program, kind, dry), kind)) for program in some for kind in kinds]
        for _, _, run in waiting:
            run.wait_until_ready()
        for program, kind, run in waiting:
            # A round that comes too late is left out, never a program's first.
            known = report.found["speed"].get(program, {each: [] for each in KINDS})
            if left() < 20 and known[kind]:
                run.process.kill()
                report.note(f"{program}, {kind}: a round is left out, the time is over")
                continue
            found = run.result(max(min(RUN_SECONDS, left() + 15), 5))
            good = good and "failed" not in found
            known[kind].append(found)
            report.keep("speed", program, known)
            seconds = found.get("all_seconds", 0)
            print(f"{program} {kind} {seconds:.1f} s {found.get('failed', '')[:300]}", flush=True)
        for program in some:
            runs = report.found["speed"][program]
            good = good and is_complete(runs) and "dense differs" not in outputs_verdict(runs)
    return good


def limits_to_try(one: dict[str, Any]) -> list[tuple[str, int]]:
    """The goal for dense placement, and the smallest device that a replay found for each kind."""

    def pages(size: float) -> int:
        return -(-int(size) // PAGE) * PAGE

    goal = pages(max(1.01 * one["held"], one["held"] + 16 * MIB))
    return [(DENSE, goal)] + [(kind, pages(one["smallest"][kind])) for kind in KINDS if one["smallest"][kind]]


def find_smallest(programs: list[str], dry: bool, report: Report, folder: Path, left: Callable[[], float]) -> bool:
    costs = folder / "costs.json"
    with ThreadPoolExecutor(6) as pool:

        def record_and_replay(program: str) -> dict[str, Any]:
            record = folder / f"{program}.pickle"
            run = Run(worker(program, DEFAULT, dry, record=str(record)))
            one = run.result(min(RUN_SECONDS, max(left(), 1)))
            if "failed" in one or one.get("out_of_memory"):
                return one
            if dry:
                record = ROOT / "src" / "allotment" / "_samples" / "streams_prefetch.pickle.gz"
            return Run(["--foretell", str(record)], costs=costs).result(min(RUN_SECONDS, max(left(), 1)))

        def limited(program: str, one: dict[str, Any]) -> None:
            def attempt(kind: str, limit: int) -> tuple[str, int, str]:
                if left() < 15:
                    return kind, limit, "left out"
                found = Run(worker(program, kind, dry, limit=limit), kind).result(min(RUN_SECONDS, left()))
                return kind, limit, "no" if found.get("out_of_memory") else found.get("failed", "yes")[:80]

            for kind, limit in limits_to_try(one):
                one.setdefault("limited", []).append(attempt(kind, limit))
                report.keep("smallest", program, one)

        def all_of(program: str) -> bool:
            one = record_and_replay(program)
            report.keep("smallest", program, one)
            if "held" in one:
                limited(program, one)
            print(f"smallest {program}: {str(one)[:200]}", flush=True)
            return "held" in one

        return all(list(pool.map(all_of, programs)))


def others(folder: Path, dry: bool, left: float, wanted: Sequence[str]) -> dict[str, Part]:
    """What runs beside the last part, each with its limit."""
    seconds = int(left) - 20
    found = {}
    if "half" in wanted:
        half = [str(TESTS / "half_precision_repeats.py"), "--out", str(folder / "half.md"), "--seconds", str(seconds)]
        found["half"] = Part([*half, "--dry"] if dry else half, seconds + 15)
    if "stress" in wanted and not dry:
        stress = str(TESTS / "dense_stress.py")
        each = ["--seconds", str(max(seconds - 30, 5)), "--limit", "8GiB"]
        found["stress"] = Part([stress, *each, "--seed", str(int(time.time())), "--renew-streams"], seconds)
        found["stress-graphs"] = Part([stress, *each, "--seed", str(int(time.time()) + 1), "--graphs"], seconds)
        checker = shutil.which("compute-sanitizer") or "/usr/local/cuda/bin/compute-sanitizer"
        if Path(checker).exists():
            checked = [checker, "--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
            short = ["--seconds", str(max(seconds // 2, 5)), "--limit", "1GiB", "--renew-streams"]
            command = ["-c", "import os, sys; os.execv(sys.argv[1], sys.argv[1:])", *checked, sys.executable, stress]
            found["stress-memcheck"] = Part([*command, *short], seconds)
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--seconds", type=float, default=570)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--program", nargs="+", choices=list(PROGRAMS), default=list(PROGRAMS))
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--worker", nargs=5, help=argparse.SUPPRESS)
    parser.add_argument("--foretell", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        program, kind, limit, record, dry = options.worker
        work(program, kind, int(limit), "" if record == "-" else record, dry == "1")
        return 0
    if options.foretell:
        sys.stdin.readline()
        foretell(options.foretell)
        return 0
    if options.out is None:
        parser.error("--out FOLDER is needed")
    folder = options.out.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.gettempdir())
    end = time.monotonic() + options.seconds
    report = Report(folder)
    good = True
    if not options.dry:
        # Compiles deep mode once, instead of in every child at the same time.
        prepare = "import torch, allotment.torch as a; a.install(dense=True); torch.zeros(1, device='cuda')"
        outcome = run_part(Part(["-c", prepare], 90), folder / "prepare.log", 90, scratch)
        report.note(f"deep mode prepared: {outcome} {last_line(folder / 'prepare.log')}")
    if "costs" in options.parts:
        device = "sim:4GiB" if options.dry else "cuda:0"
        command = ["-m", "allotment", "calibrate", device, "--rounds", "10", "--out", str(folder / "costs.json")]
        outcome = run_part(Part(command, 60), folder / "costs.log", 60, scratch)
        report.keep("parts", "costs", f"{outcome} | {last_line(folder / 'costs.log')}")
    together = [part for part in ("half", "stress", "smallest") if part in options.parts]
    if "speed" in options.parts:
        until = end - (TOGETHER_SECONDS if together else 0)
        good = measure_speed(options.program, options.rounds, options.dry, report, lambda: until - time.monotonic())
    with ThreadPoolExecutor(8) as pool:
        left = end - time.monotonic() - 15
        running = {
            name: pool.submit(run_part, part, folder / f"{name}.log", part.seconds, scratch)
            for name, part in others(folder, options.dry, left, options.parts).items()
        }
        if "smallest" in options.parts:
            found = find_smallest(options.program, options.dry, report, folder, lambda: end - 15 - time.monotonic())
            good = good and found
        for name, future in running.items():
            outcome = future.result()
            good = good and outcome == "done"
            report.keep("parts", name, f"{outcome} | {last_line(folder / f'{name}.log')}")
    print((folder / "summary.md").read_text(), flush=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
