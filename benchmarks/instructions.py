"""Instructions, cache misses and mispredicted branches of a malloc and a free, in this tree and in others.

    python benchmarks/instructions.py [--only WORDS] [SOURCE...]

Runs the loops of hot_path.py under valgrind's callgrind, which is switched on around a loop by its client requests. Two
lengths of the same loop, subtracted, leave the cost of one pass. SOURCE is the folder `src` of another tree, built with
the same Python. Unlike times, these figures are the same on a busy machine. Needs valgrind with its headers and a C
compiler; takes a minute for each tree.
"""

from __future__ import annotations

import argparse
import ctypes
import gc
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import hot_path

SHORT, LONG = 1_000, 3_000  # passes
LONGEST = 10_000  # loops of which a taking has more passes are of threads, or of a million blocks
REQUESTS = """
#include <valgrind/callgrind.h>
void begin(void) { CALLGRIND_START_INSTRUMENTATION; CALLGRIND_ZERO_STATS; CALLGRIND_TOGGLE_COLLECT; }
void end(const char* name) { CALLGRIND_TOGGLE_COLLECT; CALLGRIND_DUMP_STATS_AT(name); CALLGRIND_STOP_INSTRUMENTATION; }
"""
CALLGRIND = ["--tool=callgrind", "--instr-atstart=no", "--collect-atstart=no", "--cache-sim=yes", "--branch-sim=yes"]
COLUMNS = {
    "instructions": ["Ir"],
    "misses of the first cache": ["D1mr", "D1mw"],
    "of the last": ["DLmr", "DLmw"],
    "mispredicted branches": ["Bcm", "Bim"],
}


def count_here(library: Path, only: str) -> None:
    """Run the loops, in a process that callgrind watches."""
    requests = ctypes.CDLL(str(library))
    gc.disable()
    for name, (measure, passes) in hot_path.measures().items():
        if only in name and passes <= LONGEST:
            measure(LONG)
            measure(LONG)  # from here on a lock favors this thread, and the caches are warm
            for length in (SHORT, LONG):
                requests.begin()
                measure(length)
                requests.end(f"{name}:{length}".encode())


def counted(source: Path, only: str, folder: Path) -> dict[str, dict[str, float]]:
    """Each loop's events in one pass."""
    library = folder / "requests.so"
    (folder / "requests.c").write_text(REQUESTS)
    subprocess.run(["cc", "-O1", "-shared", "-fPIC", "-o", library, folder / "requests.c"], check=True)
    subprocess.run(
        [
            *["valgrind", *CALLGRIND, f"--callgrind-out-file={folder / 'out'}"],
            *[sys.executable, __file__, "--count", library, "--only", only],
        ],
        env=hot_path.environment(source),
        stderr=subprocess.DEVNULL,
        check=True,
    )
    totals: dict[str, dict[int, dict[str, int]]] = {}
    for dump in sorted(folder.glob("out.*"), key=lambda path: int(path.suffix[1:])):
        text = dump.read_text()
        what = re.search(r"^desc: Trigger: Client Request: (.*):(\d+)$", text, re.MULTILINE)
        events = re.search(r"^events: (.*)$", text, re.MULTILINE)
        sums = re.search(r"^(?:totals|summary): (.*)$", text, re.MULTILINE)
        if what and events and sums:
            values = map(int, sums[1].split())
            totals.setdefault(what[1], {})[int(what[2])] = dict(zip(events[1].split(), values, strict=False))
    return {
        name: {event: (lengths[LONG][event] - lengths[SHORT][event]) / (LONG - SHORT) for event in lengths[LONG]}
        for name, lengths in totals.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="*", type=Path, metavar="SOURCE")
    parser.add_argument("--only", default="", metavar="WORDS", help="the loops whose names contain this")
    parser.add_argument("--count", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.count is not None:
        count_here(options.count, options.only)
        return
    for source in [hot_path.HERE, *options.sources]:
        with tempfile.TemporaryDirectory() as folder:
            table = counted(source, options.only, Path(folder))
        print(f"\n{source}\n\n| | {' | '.join(COLUMNS)} |\n|---|{'---|' * len(COLUMNS)}")
        for name, events in table.items():
            cells = [max(sum(events.get(event, 0.0) for event in of), 0) for of in COLUMNS.values()]
            print(
                f"| {name} | {cells[0]:.0f} | {' | '.join(f'{max(cell, 0):.1f}' for cell in cells[1:])} |", flush=True
            )


if __name__ == "__main__":
    main()
