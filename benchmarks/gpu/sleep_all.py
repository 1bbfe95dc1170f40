"""Runs every check of sleep on a GPU, part after part: speeds, many cycles, an RL loop, the tests of other packages.

    python benchmarks/gpu/sleep_all.py --out FOLDER [--seconds 560] [--parts NAME ...] [--kit FOLDER]

`--kit` has the files of other projects: `torch_memory_saver.whl`, the package's tests in `test`, and the files of
vLLM's source that `tests/gpu/vllm_sleep_tests.py --pack` copies in `vllm`, with `cumem_allocator.abi3.so` beside it for
the native run. Parts that lack a file, or for which the time is too short, are skipped and named. Each part's output is
in FOLDER/PART.log, and FOLDER/summary.md is written anew after each.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
TESTS = ROOT / "tests" / "gpu"
SPARE = 10  # seconds, to end a part that runs too long


@dataclass
class Part:
    """The command of a part, its duration on an H200, and its requirements."""

    command: list[str]
    seconds: int
    most: int
    needs: tuple[Path, ...] = ()


def parts(out: Path, kit: Path) -> dict[str, Part]:
    def pausing(*arguments: str) -> list[str]:
        return [str(HERE / "pausing.py"), "--folder", str(out / "sleeping"), *arguments]

    def pytest(*arguments: str) -> list[str]:
        return ["-m", "pytest", "-q", "-rA", "-o", "faulthandler_timeout=200", *arguments]

    found = {
        "pausing": Part(pytest(str(TESTS / "test_pausing.py")), 20, 90),
        "speed": Part(
            pausing("--parts", "machine", "ours", "peer", "--seconds", "300", "--out", str(out / "speed.json")),
            260,
            330,
        ),
        "cycles": Part(pausing("--parts", "cycles", "--sizes", "0.0625", "--seconds", "100"), 60, 120),
        "loop": Part(pytest(str(TESTS / "test_torch.py"), "-k", "sleeps_between_turns"), 150, 300),
        "torch": Part(pausing("--parts", "torch"), 40, 90),
        "variants": Part(pausing("--parts", "variants", "--seconds", "80"), 80, 100),
    }
    wheel, tests = kit / "torch_memory_saver.whl", kit / "test"
    for way in ("deep", "native", "hooks"):
        saver = [str(TESTS / "memory_saver_tests.py"), "--tests", str(tests), "--wheel", str(wheel), "--ways", way]
        found[f"saver-{way}"] = Part(
            [*saver, "--seconds", "60", "--out", str(out / f"saver-{way}")], 240, 330, (wheel, tests)
        )
    vllm, compiled = kit / "vllm", kit / "cumem_allocator.abi3.so"
    for way in ("cumem", "backend", "native"):
        run = [
            str(TESTS / "vllm_sleep_tests.py"),
            "--source",
            str(vllm),
            "--ways",
            way,
            "--out",
            str(out / f"vllm-{way}"),
        ]
        needs = (vllm, compiled) if way == "native" else (vllm,)
        given = ["--compiled", str(compiled)] if way == "native" else []
        found[f"vllm-{way}"] = Part([*run, *given, "--seconds", "60"], 180, 300, needs)
    return found


def run(part: Part, log: Path, seconds: float) -> str:
    """Run it with all processes that it starts; return how it ended."""
    environment = os.environ | {"PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT / "src"), os.environ.get("PYTHONPATH", "")]))
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
    return lines[-1][:160] if lines else ""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--kit", type=Path, default=ROOT / "build" / "kit")
    parser.add_argument("--seconds", type=float, default=560)
    parser.add_argument("--parts", nargs="+", help="by default all, in order")
    options = parser.parse_args()
    out = options.out.resolve()
    (out / "sleeping").mkdir(parents=True, exist_ok=True)
    known = parts(out, options.kit.resolve())
    unknown = set(options.parts or ()) - set(known)
    if unknown:
        parser.error(f"no part {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    begin = time.monotonic()
    end = begin + options.seconds
    rows = []
    good = True
    for name in options.parts or known:
        part = known[name]
        missing = [str(place) for place in part.needs if not place.exists()]
        left = end - time.monotonic() - SPARE
        started = time.monotonic()
        if missing:
            outcome = f"left out: {missing[0]} is not there"
        elif left < part.seconds:
            outcome = f"left out: it needs {part.seconds} s, and {max(left, 0):.0f} are left"
        else:
            print(f"[{started - begin:4.0f} s] {name} begins", flush=True)
            log = out / f"{name}.log"
            outcome = run(part, log, min(left, part.most))
            outcome = f"{outcome} | {last_line(log)}"
        good = good and outcome.startswith("done")
        rows.append(f"| {name} | {time.monotonic() - started:.0f} | {outcome if '|' in outcome else outcome + ' |'} |")
        print(rows[-1], flush=True)
        (out / "summary.md").write_text(
            "\n".join(["| part | s | outcome | last line |", "|---|---|---|---|", *rows]) + "\n"
        )
    shutil.rmtree(out / "sleeping", ignore_errors=True)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
