"""The results of `explain` and `tune` on recorded runs, and how long they take.

    python benchmarks/explain_and_tune.py FOLDER [--markdown FILE]     a line for each recording in a folder
    python benchmarks/explain_and_tune.py --settings                   1,000 settings on a history of 100,000 events
    python benchmarks/explain_and_tune.py --events 10000000            `explain` on a long history: seconds and memory

If `<name>.stats.json` beside a recording has the counters of the run, the recorded peak is from there.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

import allotment
from allotment.lab.explain.report import explain
from allotment.lab.ranks.files import snapshot_files
from allotment.lab.replay.records import Kind
from allotment.lab.replay.run import Recording, read_recording
from allotment.lab.tune.candidates import all_candidates
from allotment.lab.tune.search import Goal, try_settings, tune

MIB = 1 << 20
TITLES = (
    *("recording", "events", "explain, s", "wasted, MiB", "causes add up", "tried", "tune, s"),
    *("recorded, MiB", "replayed, MiB", "best", "predicted, MiB", "expandable: predicted, MiB", "its real run, MiB"),
    "the two runs asked for",
)


def recorded_peak(file: Path) -> int | None:
    beside = file.with_name(file.name.removesuffix(".gz").removesuffix(".pickle") + ".stats.json")
    return int(json.loads(beside.read_text())["stats"]["reserved_bytes.all.peak"]) if beside.exists() else None


def expandable_run(file: Path) -> Path | None:
    """Return the same job, recorded with expandable segments, if such a recording exists."""
    other = file.with_name(file.name.replace(".default.", ".expandable."))
    return other if other != file and other.exists() else None


def parted(a: Recording, b: Recording) -> str:
    """Return where two runs of one program begin to differ; a prediction can be exact only if they do not."""
    ours, theirs = (run.calls[run.calls["block"] >= 0] for run in (a, b))
    requests, others = (calls[calls["kind"] == Kind.MALLOC]["size"] for calls in (ours, theirs))
    together = min(len(requests), len(others))
    differs = np.flatnonzero(requests[:together] != others[:together])
    if len(differs):
        at = int(differs[0])
        return f"another size from request {at + 1:,} of {len(requests):,} on: {requests[at]:,}, {others[at]:,} bytes"
    waited, waited_there = (calls[calls["kind"] == Kind.FREE_SHARED]["due"] for calls in (ours, theirs))
    if len(waited) != len(waited_there) or np.any(waited != waited_there):
        later = np.count_nonzero(waited != waited_there) if len(waited) == len(waited_there) else len(waited)
        return f"the same; {later} of {len(waited)} frees that waited were done at another request"
    return "the same" if len(requests) == len(others) else "not as much"


def mebibytes(size: int | None) -> str:
    return "-" if size is None else f"{size / MIB:,.1f}"


def line(file: Path) -> list[str]:
    begin = time.perf_counter()
    recording = read_recording(file)
    explained = explain(recording)
    explain_seconds = time.perf_counter() - begin
    waste = explained.waste.total
    adds_up = waste == explained.peak.reserved_bytes - explained.peak.live_bytes
    tuned = tune(recording, Goal.parse("min-memory"))
    other = expandable_run(file)
    real = None if other is None else recorded_peak(other)
    predicted = None if other is None else recording.replay("expandable_segments:True").peak_reserved_bytes
    return [
        file.name.removesuffix(".gz").removesuffix(".pickle"),
        f"{recording.entries:,}",
        f"{explain_seconds:.2f}",
        mebibytes(waste),
        "to the byte" if adds_up else "NO",
        str(tuned.tried),
        f"{tuned.seconds:.2f}",
        mebibytes(recorded_peak(file)),
        mebibytes(tuned.recorded.peak_reserved_bytes),
        tuned.best.settings or "defaults",
        mebibytes(tuned.best.peak_reserved_bytes),
        mebibytes(predicted),
        mebibytes(real),
        "-" if other is None else parted(recording, read_recording(other)),
    ]


def of_folder(folder: Path, markdown: Path | None) -> None:
    rows = [line(Path(file)) for file in snapshot_files([str(folder)])]
    text = "\n".join("| " + " | ".join(row) + " |" for row in (TITLES, ["---"] * len(TITLES), *rows))
    print(text)
    if markdown is not None:
        markdown.parent.mkdir(parents=True, exist_ok=True)
        markdown.write_text(
            "# `explain` and `tune` on recorded runs\n\n"
            "Made by `python benchmarks/explain_and_tune.py FOLDER --markdown FILE`. Recorded is the peak of reserved\n"
            "memory by PyTorch's own counters, replayed the same by replay since its history began, predicted the\n"
            "peak under the best settings for `min-memory`. The last columns are what a replay of the run under\n"
            "default settings predicts for `expandable_segments:True`, what a real run with that had, and whether\n"
            "that run asked for the same: only then can the two be equal.\n\n"
            f"{text}\n"
        )


def record(path: Path, events: int) -> None:
    """A job of changing sizes on a simulated device; three events per pair, and some segments."""
    allocator = allotment.Allocator("sim:64GiB", settings="compat:2.11")
    allocator.record_history(max_entries=events)
    choose = random.Random(1)
    sizes = [choose.randrange(1 << 10, 40 << 20) for _ in range(4096)]
    live = [allocator.malloc(size) for size in sizes[:200]]
    for pair in range(events // 3):
        place = pair % len(live)
        allocator.free(live[place])
        live[place] = allocator.malloc(sizes[pair % len(sizes)])
    allocator.history.dump_snapshot(path)


def thousand_settings(folder: Path) -> None:
    path = folder / "run.pickle"
    record(path, 100_000)
    recording = read_recording(path)
    capacity = 2 * recording.replay().peak_reserved_bytes
    settings = list(all_candidates(limited=True, finely=True))
    begin = time.perf_counter()
    tried = try_settings(recording, settings, capacity)
    seconds = time.perf_counter() - begin
    print(f"{len(tried):,} settings on {recording.entries:,} events: {seconds:.1f} s (goal: under 60 s on 2 cores)")


def long_history(folder: Path, events: int) -> None:
    path = folder / "run.pickle"
    command = [sys.executable, __file__, "--record", str(path), "--events", str(events)]
    subprocess.run(command, check=True)
    begin, before = time.perf_counter(), resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, "-m", "allotment", "explain", str(path), "--json"], check=True, capture_output=True)
    seconds, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    processor = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    # The largest of the children so far; the recording one needs less than half of it.
    memory = after.ru_maxrss / (1 << 20)
    size = path.stat().st_size / (1 << 20)
    print(f"explain of {events:,} events ({size:,.0f} MiB): {seconds:.1f} s, {memory:.2f} GiB at the most")
    print(f"{processor:.1f} s of processor time (goals: at most 45 s in all, under 4 GiB)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?")
    parser.add_argument("--markdown", type=Path)
    parser.add_argument("--settings", action="store_true")
    parser.add_argument("--events", type=int)
    parser.add_argument("--record", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.record is not None:
        record(arguments.record, arguments.events)
        return
    if arguments.folder is not None:
        of_folder(arguments.folder, arguments.markdown)
    with tempfile.TemporaryDirectory() as folder:
        if arguments.settings:
            thousand_settings(Path(folder))
        if arguments.events is not None:
            long_history(Path(folder), arguments.events)


if __name__ == "__main__":
    main()
