"""A run as a trace for Perfetto and chrome://tracing, in the Trace Event Format (JSON).

Each run is a process. Memory in use, reserved and wasted are counters (`ph` "C"), the largest blocks are slices that
may overlap ("b" to "e", told apart within their process by `id2`), requests that ran out of memory are instants ("i").
Times are microseconds from the first entry; a history without times counts events instead.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from allotment._viewer.answers import CAUSES, Run
from allotment.lab.explain.holders import UNKNOWN, line_of

__all__ = ["write_perfetto"]

SAMPLES = 4000
MOST_SLICES = 10_000
"""The number of blocks with a slice: those with the largest product of size and lifetime."""
CATEGORY = "memory"


def write_perfetto(runs: list[Run], path: Path) -> None:
    """Write all runs into one file, packed if its name ends in ".gz". Raises OSError."""
    events = [event for number, run in enumerate(runs, 1) for event in _events(run, number)]
    trace = {"traceEvents": events, "displayTimeUnit": "ms", "otherData": {"made by": "allotment view"}}
    text = json.dumps(trace, separators=(",", ":")).encode()
    path.write_bytes(gzip.compress(text, 6) if path.suffix == ".gz" else text)


def _events(run: Run, process: int) -> Iterator[dict[str, Any]]:
    times = run.timeline.times
    clock = times - times[0] if times[-1] > times[0] else np.arange(len(times), dtype=np.int64)
    name = f"{run.about['name']}, {run.about['label']}"
    yield {"ph": "M", "name": "process_name", "pid": process, "tid": 0, "args": {"name": name}}
    yield from _counters(run, process, clock)
    yield from _slices(run, process, clock)
    for mark in run.timeline.marks:
        if mark.kind == "oom":
            at = {"ph": "i", "name": "out of memory", "cat": CATEGORY, "s": "p", "pid": process, "tid": 0}
            yield {**at, "ts": int(clock[mark.moment]), "args": {"bytes": mark.size}}


def _counters(run: Run, process: int, clock: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    timeline = run.timeline
    by = timeline.groupings[0]
    _, arrays = run.series_parts(0, float(timeline.entries[-1]), SAMPLES, by)
    tracks = {
        "in use": (arrays["moment"], {"bytes": arrays["bands"].sum(axis=0)}),
        "reserved": (arrays["start"], {"bytes": arrays["reserved"]}),
        f"in use by {by}": (arrays["moment"], dict(zip(timeline.grouping(by).names, arrays["bands"], strict=True))),
        "held and not in use": (arrays["waste_moment"], dict(zip(CAUSES, arrays["waste"], strict=True))),
    }
    for name, (moments, columns) in tracks.items():
        values = np.stack(list(columns.values()), axis=1).tolist()
        for at, row in zip(clock[moments].tolist(), values, strict=True):
            yield {"ph": "C", "name": name, "pid": process, "ts": at, "args": dict(zip(columns, row, strict=True))}


def _slices(run: Run, process: int, clock: NDArray[np.int64]) -> Iterator[dict[str, Any]]:
    lives, timeline = run.timeline.lives, run.timeline
    weight = np.where(lives.size > 0, lives.size * (lives.freed.astype(np.float64) - lives.begin), -1.0)
    largest = np.argsort(-weight, kind="stable")[:MOST_SLICES]
    for life in largest[weight[largest] >= 0].tolist():
        stack = int(timeline.stack_of[life])
        line = line_of(timeline.stacks[stack]) if stack >= 0 else UNKNOWN
        common = {"cat": CATEGORY, "name": line, "id2": {"local": f"{life:#x}"}, "pid": process, "tid": 0}
        facts = {
            "bytes": int(lives.size[life]),
            "requested": int(lives.requested[life]),
            "address": f"{int(lives.address[life]):#x}",
            "stream": str(lives.stream[life]),
            "stack": [f"{name} {file}:{number}" for name, file, number in run.frames(stack)],
        }
        end = int(clock[min(int(lives.end[life]), timeline.last)])
        yield {"ph": "b", **common, "ts": int(clock[lives.begin[life]]), "args": facts}
        yield {"ph": "e", **common, "ts": end}
