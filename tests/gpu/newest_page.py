"""A page of the results of newest.sh, for one release or several.

    python tests/gpu/newest_page.py FOLDER...

A folder holds the results of one release: `result.MODE.NAME.json` of PyTorch's own tests, and for each stage that ended
what it printed. Needs nothing but Python.
"""

from __future__ import annotations

import collections
import itertools
import json
import re
import sys
from pathlib import Path
from typing import Any

RUNS = {
    "default": "default settings",
    "expandable": "expandable segments",
    "trees": "graph trees",
    "pinned-torch": 'pinned, "torch"',
    "pinned-tight": 'pinned, "tight"',
}
"""PyTorch's own tests, by the name of the run."""
STAGES = {
    "first": "The first tensor, without a compiler",
    "programs": "Drawn programs, natively and in deep mode",
    "pinned": "Pinned memory",
    "unknown": "The same PyTorch as a release that nobody has seen yet",
    "speed": "Speed",
    "training": "GPT-2 training",
    "loaders": "Data loaders",
}
Run = dict[str, Any]


class Release:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.runs: dict[str, dict[str, Run]] = {name: {} for name in RUNS}
        for path in folder.glob("result.*.json"):
            _, mode, name, _ = path.name.split(".", 3)
            if name in RUNS:
                self.runs[name][mode] = json.loads(path.read_text())
        facts = [run["facts"] for modes in self.runs.values() for run in modes.values()]
        self.name = next((fact["torch"] for fact in facts if "torch" in fact), folder.name.removesuffix("-results"))

    def cell(self, name: str) -> str:
        """How many tests passed natively, and how many of those in deep mode."""
        modes = self.runs[name]
        if len(modes) < 2:
            return "not run"
        passed = self.passed(name, "native")
        cell = f"{len(passed & self.passed(name, 'deep'))} of {len(passed)}"
        unfinished = sum(result["status"] == "not run" for result in modes["deep"]["results"].values())
        return f"{cell}, {unfinished} not run in the time given" if unfinished else cell

    def passed(self, name: str, mode: str) -> set[str]:
        results = self.runs[name][mode]["results"]
        return {test for test, result in results.items() if result["status"] == "pass"}

    def counts(self, name: str) -> str:
        """What became of the tests in each mode."""
        lines = []
        for mode in ("native", "deep"):
            if mode in self.runs[name]:
                run = self.runs[name][mode]
                found = collections.Counter(result["status"] for result in run["results"].values())
                told = ", ".join(f"{count} {status}" for status, count in found.most_common() if status != "missing")
                lines.append(f"{mode}: {told}, in {run['facts']['seconds']} s")
        return "; ".join(lines)

    def different(self, name: str) -> list[str]:
        """The tests that do not end alike, with the reason."""
        modes = self.runs[name]
        if len(modes) < 2:
            return []
        native, deep = modes["native"]["results"], modes["deep"]["results"]
        lines = []
        for test in sorted(native.keys() | deep.keys()):
            one, other = native.get(test), deep.get(test)
            states = [result["status"] if result else "none" for result in (one, other)]
            if states[0] != states[1]:
                why = next((result["message"] for result in (other, one) if result and result["message"]), "")
                words = re.sub(r"\s+", " ", why).replace("|", "/")[:200]
                lines.append(f"| `{test.rpartition('::')[2]}` | {RUNS[name]} | {states[0]} | {states[1]} | {words} |")
        return lines

    def told(self, stage: str) -> str:
        path = self.folder / f"{stage}.txt"
        return path.read_text(errors="replace").strip() if path.exists() else ""


def page(releases: list[Release]) -> str:
    lines = ["# Deep mode with other releases of PyTorch", ""]
    lines += ["PyTorch's own tests: of those that pass natively, how many pass in deep mode."]
    lines += ["", "| PyTorch | " + " | ".join(RUNS.values()) + " |", "|---|" + "---|" * len(RUNS)]
    lines += [f"| {each.name} | " + " | ".join(map(each.cell, RUNS)) + " |" for each in releases]
    for each in releases:
        lines += ["", f"## {each.name}", ""]
        lines += [f"- {title}: {each.counts(name)}" for name, title in RUNS.items() if each.counts(name)]
        different = [line for name in RUNS for line in each.different(name)]
        if different:
            lines += [
                "",
                "| Ends otherwise | run | natively | in deep mode | why |",
                "|---|---|---|---|---|",
                *different,
            ]
        for stage, title in STAGES.items():
            if told := each.told(stage):
                lines += ["", f"### {title}", "", *shown(told)]
    return "\n".join(lines)


def shown(told: str) -> list[str]:
    """What a stage printed: its tables as tables, and the rest as it is."""
    lines: list[str] = []
    for is_table, part in itertools.groupby(told.splitlines(), lambda line: line.startswith("|")):
        if text := "\n".join(map(str.rstrip, part)).strip("\n"):
            lines += ["", text] if is_table else ["", "```text", text, "```"]
    return lines[1:]


if __name__ == "__main__":
    print(page([Release(Path(folder)) for folder in sys.argv[1:]]))
