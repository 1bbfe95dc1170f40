"""All that shows sleep on a GPU in one call, part after part, the most important one first.

    python benchmarks/gpu/sleep_all.py --out FOLDER [--seconds 580] [--parts NAME ...] [--kit FOLDER]

`--kit` has what is not ours: `torch_memory_saver.whl`, the package's tests in `test`, and the files of vLLM's source
that `tests/gpu/vllm_sleep_tests.py --pack` copies in `vllm`, with `cumem_allocator.abi3.so` beside it for the native
way. Each part is a process with a time limit of its own. Parts that need a thing that is not there are left out, as are
those that the time is too short for; both are named, and `--parts` runs them in another call, into the same folder if
it is still there. FOLDER/summary.md has all tables and is written anew after each part; FOLDER/PART.log is a part's
output. Ends with 1 unless all parts were run to their end and found nothing wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import zipfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests" / "gpu"
SPARE = 10  # seconds, to end what runs too long
LOOPS = [
    ("deep", "expandable_segments:True"), ("deep", "placement:dense"), ("hooks", ""),
    ("deep", ""), ("hooks", "expandable_segments:True"), ("hooks", "placement:dense"),
]  # fmt: skip


@dataclass
class Part:
    """What a part runs, how long it may take, and what it needs. With less than half of the time it does not begin."""

    command: list[str]
    seconds: int
    needs: tuple[Path, ...] = ()
    native: bool = False  # with torch_memory_saver's own package


def parts(out: Path, kit: Path, scratch: Path, sizes: list[float], cycles: int) -> dict[str, Part]:
    def pausing(name: str, seconds: int, *arguments: str) -> list[str]:
        given = ["--folder", str(scratch), "--seconds", str(seconds - SPARE), "--out", str(out / f"{name}.json")]
        return [str(HERE / "pausing.py"), *given, *arguments]

    def tests(program: str, name: str, way: str, *arguments: str) -> list[str]:
        given = ["--ways", way, "--seconds", "40", "--out", str(out / name)]
        return [str(TESTS / program), *given, *arguments]

    sized = ["--sizes", *map(str, sizes), "--peer-sizes", *map(str, sizes)]
    wheel, foreign = kit / "torch_memory_saver.whl", kit / "test"
    saver = ["--tests", str(foreign), "--wheel", str(wheel)]
    vllm, compiled = kit / "vllm", kit / "cumem_allocator.abi3.so"
    found = {
        "speed": Part(pausing("speed", 170, "--parts", "machine", "ours", *sized), 170),
        "cycles": Part(pausing("cycles", 60, "--parts", "cycles", "--sizes", "0.015625", "--cycles", str(cycles)), 60),
        "prepare": Part(["-c", "import allotment.torch; allotment.torch.install(mode='deep')"], 120),  # it may compile
        "loop": Part([str(HERE / "sleep_all.py"), "--loop", "--out", str(out), "--seconds", "65"], 75),
        "peer": Part(pausing("peer", 125, "--parts", "peer", *sized), 125, (wheel,), native=True),
    }
    found["vllm-backend"] = Part(tests("vllm_sleep_tests.py", "vllm", "backend", "--source", str(vllm)), 90, (vllm,))
    for way in ("deep", "native"):
        found[f"saver-{way}"] = Part(tests("memory_saver_tests.py", "saver", way, *saver), 150, (wheel, foreign))
    found["vllm-cumem"] = Part(tests("vllm_sleep_tests.py", "vllm", "cumem", "--source", str(vllm)), 90, (vllm,))
    return found | {
        "tests": Part(["-m", "pytest", "-q", "-rA", str(TESTS / "test_pausing.py")], 60),
        "torch": Part(pausing("torch", 90, "--parts", "torch"), 90),
        "variants": Part(pausing("variants", 90, "--parts", "variants"), 90),
        "saver-hooks": Part(tests("memory_saver_tests.py", "saver", "hooks", *saver), 150, (wheel, foreign)),
        "vllm-native": Part(
            tests("vllm_sleep_tests.py", "vllm", "native", "--source", str(vllm), "--compiled", str(compiled)),
            90, (vllm, compiled),
        ),
    }  # fmt: skip


# --- the RL loop ---


def loops(out: Path, seconds: float) -> int:
    """Run the RL loop awake and asleep, in each mode until the time is over; return whether any outputs differ."""
    end = time.monotonic() + seconds
    rows: list[dict[str, Any]] = []
    for mode, settings in LOOPS:
        begin = time.monotonic()
        told = {}
        for way in ("awake", "asleep"):
            try:
                done = subprocess.run(
                    [sys.executable, str(TESTS / "programs" / "rl_loop.py"), mode, settings, way],
                    env=os.environ | {"CUBLAS_WORKSPACE_CONFIG": ":4096:8"}, capture_output=True, text=True,
                    timeout=max(end - time.monotonic(), 1),
                )  # fmt: skip
            except subprocess.TimeoutExpired:
                print(f"no time for {mode} {settings!r} {way}", flush=True)
                return not rows or not all(row["equal"] for row in rows)
            print(done.stdout, done.stderr[-3000:], flush=True)
            told[way] = json.loads(done.stdout.splitlines()[-1]) if done.returncode == 0 else None
        row: dict[str, Any] = {"mode": mode, "settings": settings, "equal": False}
        awake, asleep = told["awake"], told["asleep"]
        if awake is None or asleep is None:
            row["failed"] = "awake" if awake is None else "asleep"
        else:
            row |= {
                "equal": awake["rounds"] == asleep["rounds"], "rounds": len(asleep["rounds"]),
                "different_rounds": len(set(map(str, asleep["rounds"]))),
                "sleeps": asleep["sleeps"], "least_rise_MiB": asleep["least_rise"] >> 20,
            }  # fmt: skip
        rows.append(row | {"seconds": round(time.monotonic() - begin, 1)})
        (out / "loop.json").write_text(json.dumps(rows, indent=1))
        if time.monotonic() + rows[-1]["seconds"] > end:
            break
    return not all(row["equal"] for row in rows)


# --- what was found ---


def plain_table(rows: list[dict[str, Any]]) -> list[str]:
    if not rows:
        return ["Nothing."]
    columns = list(dict.fromkeys(column for row in rows for column in row))
    lines = ["| " + " | ".join(columns) + " |", "|" + "---|" * len(columns)]
    return lines + ["| " + " | ".join(str(row.get(column, "")) for column in columns) + " |" for row in rows]


def summary(out: Path, rows: list[dict[str, Any]]) -> str:
    """All tables of what is in the folder by now."""
    from pausing import goals, table

    sys.path.insert(0, str(TESTS))
    from foreign_tests import outcomes_in
    from foreign_tests import table as table_of_tests

    def found_in(name: str) -> list[dict[str, Any]]:
        file = out / f"{name}.json"
        return json.loads(file.read_text()) if file.exists() else []

    speed = found_in("speed") + found_in("peer")
    lines = ["# Sleep and wake", "", *plain_table(rows), "", "## The machine", ""]
    lines += [*plain_table([row for row in speed if "machine" in row]), "", "## Sleep and wake, GB/s", ""]
    lines += [*table(speed), "", *(f"- {line}" for line in goals(speed))]
    lines += [f"- {json.dumps(row)}" for row in speed if "left out" in row or "failed" in row]
    for title, name in (("Many cycles", "cycles"), ("RL loop", "loop")):
        lines += ["", f"## {title}", "", *plain_table(found_in(name))]
    for title, name in (("Tests of torch_memory_saver", "saver"), ("Tests of vLLM", "vllm")):
        ways = {file.stem: outcomes_in(file) for file in sorted((out / name).glob("*.jsonl"))}
        lines += ["", f"## {title}", "", table_of_tests(ways) if ways else "Nothing."]
    for title, name in (("PyTorch", "torch"), ("Variants", "variants")):
        if found_in(name):
            lines += ["", f"## {title}", "", *(f"- {json.dumps(row)}" for row in found_in(name))]
    return "\n".join(lines) + "\n"


# --- all of it ---


def scratch_folder(out: Path) -> Path:
    """A folder for files of sleeping memory: not in memory, and not among the results if there is another one."""
    import allotment

    with allotment.Allocator("host") as allocator, allotment.tag("trial"):
        array = allocator.zeros(1000)
        for place in (tempfile.gettempdir(), "/var/tmp", ROOT, out):
            try:
                allocator.pause("trial", keep="file", folder=place)
            except (allotment.AllotmentError, OSError) as error:
                print(f"no files in {place}: {error}", flush=True)
                continue
            allocator.resume("trial")
            break
        del array
    return Path(tempfile.mkdtemp(prefix="sleep-", dir=place))


def run(part: Part, log: Path, seconds: float, scratch: Path) -> str:
    """Run it with all processes that it starts; return how it ended."""
    native = str(scratch / "native") if part.native else ""
    environment = os.environ | {"PYTHONUNBUFFERED": "1", "TMPDIR": str(scratch)}
    environment["PYTHONPATH"] = os.pathsep.join(
        filter(None, [native, str(ROOT / "src"), str(ROOT / "tests"), os.environ.get("PYTHONPATH", "")])
    )
    with open(log, "w") as output:
        process = subprocess.Popen(
            [sys.executable, *part.command],
            cwd=ROOT, env=environment, stdout=output, stderr=subprocess.STDOUT, start_new_session=True,
        )  # fmt: skip
        try:
            code = process.wait(seconds)
        except subprocess.TimeoutExpired:
            return f"ended after {seconds:.0f} s"
        else:
            return "done" if code == 0 else f"exit code {code}"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def last_line(log: Path) -> str:
    lines = log.read_text(errors="replace").strip().splitlines()
    return lines[-1][:160].replace("|", "/") if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kit", type=Path, default=ROOT / "build" / "kit")
    parser.add_argument("--seconds", type=float, default=580)
    parser.add_argument("--parts", nargs="+", help="by default all, in order")
    parser.add_argument("--sizes", nargs="+", type=float, default=[1, 40, 10], metavar="GIB")
    parser.add_argument("--cycles", type=int, default=1000)
    parser.add_argument("--loop", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    begin = time.monotonic()
    end = begin + options.seconds
    out, kit = options.out.resolve(), options.kit.resolve()
    out.mkdir(parents=True, exist_ok=True)
    if options.loop:
        return loops(out, options.seconds)
    scratch = scratch_folder(out)
    known = parts(out, kit, scratch, options.sizes, options.cycles)
    unknown = set(options.parts or ()) - set(known)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    if (kit / "torch_memory_saver.whl").exists():
        zipfile.ZipFile(kit / "torch_memory_saver.whl").extractall(scratch / "native")
    rows: list[dict[str, Any]] = []
    try:
        for name in options.parts or known:
            part = known[name]
            missing = [str(place) for place in part.needs if not place.exists()]
            left = end - time.monotonic() - SPARE
            started = time.monotonic()
            last = ""
            if missing:
                outcome = f"left out: {missing[0]} is not there"
            elif left < part.seconds / 2:
                outcome = f"left out: it may need {part.seconds} s, and {max(left, 0):.0f} are left"
            else:
                print(f"[{started - begin:4.0f} s] {name} begins", flush=True)
                log = out / f"{name}.log"
                outcome = run(part, log, min(left, part.seconds), scratch)
                last = last_line(log)
            rows.append({
                "part": name, "s": round(time.monotonic() - started), "outcome": outcome, "last line": last,
            })  # fmt: skip
            print(f"[{time.monotonic() - begin:4.0f} s] {name}: {outcome}: {last}", flush=True)
            (out / "summary.md").write_text(summary(out, rows))
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
    print((out / "summary.md").read_text())
    return 0 if all(row["outcome"] == "done" for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
