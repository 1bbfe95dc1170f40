"""A newcomer's path, timed: from a snapshot of their own to the line to paste.

    python benchmarks/newcomer.py SNAPSHOT [--json]

Clones this repository into an empty folder, types there what README.md says, and prints what was typed with the seconds
it took. Uses nothing that was built before: neither this tree nor ccache. Fails if no line to paste comes out.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

HERE = Path(__file__).parents[1]
STEPS = (
    "git clone --quiet {repository} allotment",
    "python3 -m venv mine && . mine/bin/activate && pip install --quiet './allotment[cli]'",
    ". mine/bin/activate && allotment explain run.pickle",
    ". mine/bin/activate && allotment tune run.pickle",
)
"""The commands that are typed, in a folder that contains only the snapshot."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("snapshot", type=Path)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("ALLOTMENT_", "PYTHON"))}
    environment["CCACHE_DISABLE"] = "1"
    taken: dict[str, float] = {}
    out = ""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "run.pickle").symlink_to(arguments.snapshot.resolve())
        for step in STEPS:
            begin = time.perf_counter()
            typed = step.format(repository=HERE)
            done = subprocess.run(
                ["bash", "-c", typed], cwd=folder, env=environment, stdout=subprocess.PIPE, text=True, check=False
            )
            taken[step.format(repository="REPOSITORY")] = round(time.perf_counter() - begin, 1)
            if done.returncode != 0:
                sys.exit(f"{typed}: exit code {done.returncode}")
            out = done.stdout
    lines = [line for line in out.splitlines() if line.startswith("To paste")]
    if not lines:
        sys.exit("no line to paste came out")
    if arguments.json:
        print(json.dumps({"seconds": taken, "lines": lines}))
        return
    for step, seconds in taken.items():
        print(f"{seconds:8.1f} s  $ {step}")
    print(f"{sum(taken.values()):8.1f} s  in all, to:")
    for line in lines:
        print(f"            {line}")


if __name__ == "__main__":
    main()
