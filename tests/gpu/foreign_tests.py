"""Runs the tests of another package in several ways, each way in one process, and prints a table of the outcomes.

Programs here call `compare`. The process of each way is pytest with this file as its plugin: it ends a test that takes
too long, with the processes that the test started, and writes one line for each test.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

SECONDS, LINES = "FOREIGN_TESTS_SECONDS", "FOREIGN_TESTS_LINES"
HERE = Path(__file__).resolve().parent

Outcomes = dict[str, tuple[str, str]]  # by test: what became of it, and the last line of why


# --- the plugin, in the process of one way ---


def pytest_runtest_setup(item):
    def too_long(number, frame):
        for child in multiprocessing.active_children():
            child.kill()
        raise TimeoutError(f"took over {os.environ[SECONDS]} s")

    if SECONDS in os.environ:
        signal.signal(signal.SIGALRM, too_long)
        signal.alarm(int(os.environ[SECONDS]))


def pytest_runtest_teardown(item):
    signal.alarm(0)


def pytest_runtest_logreport(report):
    if LINES in os.environ and (report.when == "call" or report.outcome != "passed"):
        if report.skipped:
            why = report.longrepr[2] if isinstance(report.longrepr, tuple) else ""
        else:
            crash = getattr(report.longrepr, "reprcrash", None)
            why = crash.message.splitlines()[0] if crash is not None else ""
        with open(os.environ[LINES], "a") as lines:
            lines.write(json.dumps([report.nodeid.rpartition("/")[2], report.outcome, why]) + "\n")


# --- the caller ---


def run(arguments: list[str], *, at: Path, environment: dict[str, str], seconds: int, out: Path, name: str) -> Outcomes:
    """Run pytest on another package's tests; `environment` is added to ours, with PYTHONPATH in front of ours.

    What is known of each test is in `out` as soon as the test ends.
    """
    lines = out / f"{name}.jsonl"
    lines.write_text("")
    changed = os.environ | environment | {SECONDS: str(seconds), LINES: str(lines.resolve())}
    places = [environment.get("PYTHONPATH", ""), str(HERE), os.environ.get("PYTHONPATH", "")]
    changed["PYTHONPATH"] = os.pathsep.join(filter(None, places))
    changed["PYTHONDONTWRITEBYTECODE"] = "1"
    # Without a configuration, or a folder inside of a project would get that project's.
    alone = ["-c", os.devnull, "--rootdir", str(at.resolve()), "-p", "no:cacheprovider"]
    command = [sys.executable, "-m", "pytest", "-p", "foreign_tests", *alone, "-s", "-v", "-rA"]
    with open(out / f"{name}.log", "w") as output:
        subprocess.run([*command, *arguments], cwd=at, env=changed, stdout=output, stderr=subprocess.STDOUT)
    return outcomes_in(lines)


def outcomes_in(lines: Path) -> Outcomes:
    return {name: (outcome, why) for name, outcome, why in map(json.loads, lines.read_text().splitlines())}


def table(ways: dict[str, Outcomes]) -> str:
    """One line a test, one column a way; below it, why tests failed."""
    tests = list(dict.fromkeys(test for outcomes in ways.values() for test in outcomes))
    found = ["| Test | " + " | ".join(ways) + " |", "|---|" + "---|" * len(ways)]
    for test in tests:
        found.append(f"| {test} | " + " | ".join(way.get(test, ("not run", ""))[0] for way in ways.values()) + " |")
    passed = [sum(outcome == "passed" for outcome, _ in way.values()) for way in ways.values()]
    found.append("| passed | " + " | ".join(map(str, passed)) + " |")
    for name, outcomes in ways.items():
        found += ["", *(f"{name}: {test}: {why}" for test, (outcome, why) in outcomes.items() if outcome == "failed")]
    return "\n".join(found)


def compare(ways: dict[str, dict[str, str]], arguments: list[str], *, at: Path, seconds: int, out: Path) -> None:
    """Run all ways, each with its environment, print the table, and keep it with the logs in `out`."""
    out.mkdir(parents=True, exist_ok=True)
    results = {}
    for name, environment in ways.items():
        results[name] = run(arguments, at=at, environment=environment, seconds=seconds, out=out, name=name)
        print(f"{name}: {len(results[name])} tests, log in {out / name}.log", flush=True)
        (out / "table.md").write_text(table(results) + "\n")  # after each, in case the time runs out
    print(table(results))
