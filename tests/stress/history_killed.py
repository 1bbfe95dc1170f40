"""A long history streamed to a file by a program that is killed: the contents of the file, and the cost of reading it.

    python tests/stress/history_killed.py [--events 100_000_000] [--folder DIR]

Two programs write `--events` events each, alternating malloc and free. The first ends by itself, and its file
must have all of them. The second is killed with SIGKILL when it is half way, and its file must be whole up to its last
record: every event where it belongs, none but those of the last second or so missing. Prints seconds, sizes and the
peak memory of the writing program.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

from allotment._core.edge.words import Action
from allotment._formats.history_file import HistoryFrames
from allotment._formats.history_rows import Columns, FrameKind

EVENTS_OF_A_PAIR = 3
HELD = 64


def write(path: str, events: int) -> None:
    """The program under test: writes so many pairs of events."""
    import allotment

    allocator = allotment.Allocator("sim:8GiB", settings="compat:newest")
    allocator.record_history(file=path)
    malloc, free = allocator.malloc, allocator.free
    for size in range(HELD):
        malloc(100_000 + size)
    pairs = events // EVENTS_OF_A_PAIR
    half = pairs // 2
    for _ in range(half):
        free(malloc(5_000_000))
    print("half", flush=True)
    for _ in range(pairs - half):
        free(malloc(5_000_000))
    allocator.close()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, flush=True)


def check(path: Path) -> tuple[int, int]:
    """Read a file batch by batch and check that each event follows the one before it; return events and pairs."""
    events = pairs = 0
    expected = [int(Action.ALLOC), int(Action.FREE_REQUESTED), int(Action.FREE_COMPLETED)]
    place = 0
    with path.open("rb") as stream:
        for kind, records, content in HistoryFrames(stream):
            if kind is not FrameKind.RECORDS:
                continue
            columns = Columns(records)
            read = columns.read(content)
            events += read
            of_pairs = columns.action[:read][columns.size[:read] == 5_000_000]
            order = (np.arange(len(of_pairs)) + place) % 3
            assert np.array_equal(of_pairs, np.array(expected, dtype=np.uint8)[order]), "an event is missing"
            place = (place + len(of_pairs)) % 3
            pairs += int(np.count_nonzero(of_pairs == Action.FREE_COMPLETED))
    return events, pairs


def run(events: int, path: Path, kill: bool) -> dict[str, float]:
    command = [sys.executable, __file__, "--write", str(path), "--events", str(events)]
    begin = time.perf_counter()
    memory = 0
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as program:
        assert program.stdout is not None
        assert program.stdout.readline() == "half\n"
        if kill:
            program.send_signal(signal.SIGKILL)
        else:
            memory = int(program.stdout.readline()) * 1024
    written = time.perf_counter() - begin
    begin = time.perf_counter()
    found, pairs = check(path)
    return {
        "events": found,
        "pairs": pairs,
        "seconds_writing": round(written, 2),
        "seconds_reading": round(time.perf_counter() - begin, 2),
        "bytes": os.path.getsize(path),
        "bytes_an_event": round(os.path.getsize(path) / max(found, 1), 2),
        "peak_memory_bytes": memory,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--events", type=int, default=100_000_000)
    parser.add_argument("--folder", type=Path)
    parser.add_argument("--write", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.write:
        write(arguments.write, arguments.events)
        return
    with tempfile.TemporaryDirectory(dir=arguments.folder) as folder:
        path = Path(folder) / "run.history"
        whole = run(arguments.events, path, kill=False)
        assert whole["pairs"] == arguments.events // EVENTS_OF_A_PAIR, "events are missing at the end"
        killed = run(arguments.events, path, kill=True)
        assert killed["events"] > 0
    print(json.dumps({"ended": whole, "killed half way": killed}, indent=2))


if __name__ == "__main__":
    main()
