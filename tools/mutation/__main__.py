"""Mutation testing: makes one change at a time to the engine, and checks that the engine's tests fail.

    python tools/mutation 50 --seed 7              # fifty random changes
    python tools/mutation 50 --seed 7 --list       # print them only

Works on a copy of the tree under build/mutation, where changed modules are compiled without optimization. A change
that does not compile is not counted. A change that no test notices is printed with its place: either a test is
missing, or both programs behave the same.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import subprocess
import sys
import time
from pathlib import Path

from mutants import Mutant, mutants_of

ROOT = Path(__file__).parents[2]
COPY = ROOT / "build" / "mutation"
ENGINE = Path("src/allotment/_core")
TESTS = ("tests/lab/conformance", "tests/core", "tests/allocators/caching")  # the most sensitive tests first
COPIED = ("src", "tests", "examples", "docs", "tools", "setup.py", "pyproject.toml", "README.md")
# It compares files with their sources, and would notice every change to them, whatever its effect.
LEFT_OUT = "--deselect=tests/core/contract/test_operations.py::test_what_is_generated_is_fresh"
PATIENCE = 5  # times the duration of the unchanged tests: a program that hangs counts as noticed


def main() -> int:
    parser = argparse.ArgumentParser(description="whether the tests of the engine notice changes to it")
    parser.add_argument("count", type=int, help="how many changes to draw")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--list", action="store_true", help="show them and do nothing")
    parser.add_argument("--only", default="", help="files whose path contains this")
    options = parser.parse_args()
    places = sorted(path for path in (ROOT / ENGINE).rglob("*.p[yx]*") if path.suffix in (".pyx", ".pxd"))
    found = [m for path in places if options.only in str(path) for m in mutants_of(path.relative_to(ROOT), ROOT)]
    drawn = random.Random(options.seed).sample(found, min(options.count, len(found)))
    print(f"{len(drawn)} of {len(found)} changes, seed {options.seed}")
    if options.list:
        print(*drawn, sep="\n")
        return 0
    make_copy()
    begun = time.monotonic()
    if not (build() and tests_pass()):
        print("the tests fail without any change")
        return 2
    return try_all(drawn, PATIENCE * (time.monotonic() - begun))


def try_all(drawn: list[Mutant], seconds: float) -> int:
    verdicts = {"noticed": 0, "does not compile": 0, "SURVIVED": 0}
    for mutant in drawn:
        begun = time.monotonic()
        verdict = verdict_on(mutant, seconds)
        verdicts[verdict] += 1
        print(f"{verdict:16} {time.monotonic() - begun:5.0f} s  {mutant}", flush=True)
    print(", ".join(f"{count} {verdict}" for verdict, count in verdicts.items()))
    return 1 if verdicts["SURVIVED"] else 0


def verdict_on(mutant: Mutant, seconds: float) -> str:
    path = COPY / mutant.path
    before = path.read_text()
    path.write_text(mutant.applied_to(before))
    try:
        if not build():
            return "does not compile"
        return "SURVIVED" if tests_pass(seconds) else "noticed"
    finally:
        path.write_text(before)


def make_copy() -> None:
    COPY.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        source, copy = ROOT / name, COPY / name
        if source.is_dir():
            shutil.rmtree(copy, ignore_errors=True)
            shutil.copytree(source, copy)  # keeps the files' times, so that nothing is compiled twice
        else:
            shutil.copy2(source, copy)


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": "src", "ALLOTMENT_QUICK": "1"}


def build() -> bool:
    command = [sys.executable, "setup.py", "--quiet", "build_ext", "--inplace"]
    return subprocess.run(command, cwd=COPY, env=environment(), capture_output=True, check=False).returncode == 0


def tests_pass(seconds: float | None = None) -> bool:
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-x",
        "-p",
        "no:cacheprovider",
        "-m",
        "not gpu and not slow",
        LEFT_OUT,
    ]
    try:
        done = subprocess.run([*command, *TESTS], cwd=COPY, env=environment(), capture_output=True, timeout=seconds)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


if __name__ == "__main__":
    sys.exit(main())
