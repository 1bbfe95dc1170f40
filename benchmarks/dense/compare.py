"""Replays every snapshot of a folder under PyTorch's placement, plain and expandable, and under dense placement.

    python benchmarks/dense/compare.py SNAPSHOT_OR_FOLDER... [--fit] [--settings S]... [--out FILE.json]

Prints, for each workload: the peak in use in the recording, the least that any placement has to reserve over it, peak
reserved over it, driver time and its ratio to that of PyTorch's default in the same run, driver calls about memory in
the last quarter, and with --fit the smallest device over the peak in use. Then geometric means; workloads whose names
begin with graph_train (private pools hold memory that nothing uses) or fsdp (dense placement has less live than was
recorded) are not part of them and are listed separately.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from allotment.lab.replay.loop import rounded_sizes
from allotment.lab.replay.records import Kind
from allotment.lab.replay.result import Result
from allotment.lab.replay.run import Recording, read_recording

DEFAULT, EXPANDABLE, DENSE = "default", "expandable", "dense"
SETTINGS = {DEFAULT: "", EXPANDABLE: "expandable_segments:True", DENSE: "placement:dense"}
APART = ("graph_train", "fsdp")


def snapshots(places: list[Path]) -> list[Path]:
    found = [file for place in places for file in (sorted(place.glob("*.pickle*")) if place.is_dir() else [place])]
    return [file for file in found if ".expandable." not in file.name and "with_stacks" not in file.name]


def figures(recording: Recording, settings: str, fit: bool) -> dict[str, Any]:
    result: Result = recording.replay(settings)
    smallest = recording.fit(settings) if fit else None
    live = result.recorded_peak_active_bytes
    return {
        "reserved": result.peak_reserved_bytes / live,
        "driver_ms": result.driver_ms,
        "last_quarter": result.calls_last_quarter,
        "waits": result.waits,
        "chunks": result.chunks,
        "views": result.views,
        "smallest": None if smallest is None else smallest / live,
    }


def least_reserved(recording: Recording) -> int:
    """Return what any placement has to reserve: everything in use, and in private pools the peak that was in use.

    A private pool serves a graph that writes to its memory whenever it is replayed.
    """
    calls, _ = recording.all_calls
    calls = calls[(calls["block"] >= 0) | (calls["kind"] == Kind.RELEASE_POOL)]
    size = np.zeros(int(calls["block"].max(initial=0)) + 1, dtype=np.int64)
    pool = np.zeros(len(size), dtype=np.int64)
    asks = calls["kind"] == Kind.MALLOC
    size[calls["block"][asks]] = rounded_sizes(recording.settings, np.ascontiguousarray(calls["size"][asks]))
    pool[calls["block"][asks]] = calls["pool"][asks]
    releases = calls["kind"] == Kind.RELEASE_POOL
    change = np.where(releases, 0, np.where(asks, 1, -1) * size[calls["block"]])
    total = np.zeros(len(calls), dtype=np.int64)
    for number in np.unique(pool):
        live = np.cumsum(np.where(pool[calls["block"]] == number, change, 0))
        ended = np.flatnonzero(releases & (calls["pool"] == number))
        until = 0 if number == 0 else int(ended[0]) if len(ended) else len(live)
        live[:until] = np.maximum.accumulate(live[:until])
        total += live
    return int(total.max(initial=0))


def geometric_mean(values: list[float]) -> float:
    return math.exp(sum(map(math.log, values)) / len(values)) if values else math.nan


def print_row(name: str, live: int, least: int, row: dict[str, dict[str, Any]]) -> None:
    cells = [name, f"{live / (1 << 20):,.0f}", f"{least / live:.4f}"]
    for kind in row:
        cells.append(f"{row[kind]['reserved']:.4f}")
    for kind in row:
        cells.append(f"{row[kind]['driver_ms']:.1f}")
    base = row[DEFAULT]["driver_ms"]
    cells.append(f"{row[DENSE]['driver_ms'] / base:.2f}" if base else "-")
    cells.append(str(row[DENSE]["last_quarter"]))
    cells.append(str(row[DENSE]["waits"]))
    if row[DENSE]["smallest"] is not None:
        cells += [f"{row[kind]['smallest']:.4f}" for kind in row]
    print("| " + " | ".join(cells) + " |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description="Placements compared on recorded workloads.")
    parser.add_argument("places", nargs="+", type=Path)
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--settings", action="append", default=[], help="dense_* keys for one more column each")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    kinds = SETTINGS | {extra: f"placement:dense,{extra}" for extra in arguments.settings}
    titles = [
        "workload",
        "live MiB",
        "bound",
        *(f"{kind} reserved" for kind in kinds),
        *(f"{kind} ms" for kind in kinds),
    ]
    titles += ["dense/default", "last quarter", "waits"]
    titles += [f"{kind} smallest" for kind in kinds] if arguments.fit else []
    print("| " + " | ".join(titles) + " |\n|" + "---|" * len(titles))
    rows: dict[str, dict[str, dict[str, Any]]] = {}
    for file in snapshots(arguments.places):
        recording = read_recording(file)
        name = file.name.split(".pickle")[0]
        rows[name] = {kind: figures(recording, settings, arguments.fit) for kind, settings in kinds.items()}
        least = least_reserved(recording)
        live = recording.replay("").recorded_peak_active_bytes
        print_row(name, live, max(least, live), rows[name])
    counted = [row for name, row in rows.items() if not name.startswith(APART)]
    print()
    for kind in kinds:
        ratios = [row[kind]["reserved"] for row in counted]
        total = sum(row[kind]["driver_ms"] for row in rows.values())
        base = sum(row[DEFAULT]["driver_ms"] for row in rows.values())
        line = f"{kind}: reserved/live geometric mean {geometric_mean(ratios):.4f}, worst {max(ratios, default=0):.4f}"
        line += f"; driver time in sum {total:.1f} ms, {total / base if base else math.nan:.2f} of default's"
        if arguments.fit:
            smallest = [row[kind]["smallest"] for row in counted]
            line += f"; smallest device {geometric_mean(smallest):.4f}, worst {max(smallest):.4f}"
        print(line)
    if arguments.out is not None:
        arguments.out.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
