"""The trace for Perfetto: every event has what the Trace Event Format asks of its kind."""

from __future__ import annotations

import gzip
import json
from collections import Counter
from pathlib import Path

import pytest

from allotment._viewer.perfetto import write_perfetto
from allotment._viewer.runs import Runs

SLICE = {"name", "cat", "id", "pid", "tid", "ts"}
NEEDED = {
    "M": {"name", "pid", "args"},
    "C": {"name", "pid", "ts", "args"},
    "i": {"name", "pid", "tid", "ts", "s"},
    "b": SLICE,
    "e": SLICE,
}


@pytest.fixture(scope="module")
def events(runs: Runs, tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, object]]:
    path = tmp_path_factory.mktemp("perfetto") / "trace.json"
    write_perfetto(runs.shown, path)
    return json.loads(path.read_text())["traceEvents"]


def test_every_event_has_the_fields_of_its_kind(events: list[dict[str, object]]) -> None:
    assert {event["ph"] for event in events} == {"M", "C", "b", "e"}
    for event in events:
        assert NEEDED[event["ph"]] <= event.keys()
        assert event.get("ts", 0) >= 0 and isinstance(event.get("ts", 0), int)
        assert event["ph"] != "C" or all(isinstance(value, int) for value in event["args"].values())


def test_every_slice_that_begins_ends_later_or_at_once(events: list[dict[str, object]]) -> None:
    begins = {event["id"]: event for event in events if event["ph"] == "b"}
    ends = {event["id"]: event for event in events if event["ph"] == "e"}
    assert len(begins) == sum(event["ph"] == "b" for event in events), "ids are of one slice each"
    assert begins.keys() == ends.keys()
    assert all(ends[name]["ts"] >= begin["ts"] for name, begin in begins.items())


def test_counters_reach_the_peaks_of_each_run(events: list[dict[str, object]], runs: Runs) -> None:
    for process, run in enumerate(runs.shown, 1):
        mine = [event for event in events if event["pid"] == process and event["ph"] == "C"]
        assert max(e["args"]["bytes"] for e in mine if e["name"] == "reserved") == run.timeline.peak_reserved[1]
        assert max(e["args"]["bytes"] for e in mine if e["name"] == "in use") == run.timeline.peak_live[1]
        times = [event["ts"] for event in mine if event["name"] == "in use"]
        assert times == sorted(times)
    assert Counter(event["pid"] for event in events if event["ph"] == "M") == {1: 1, 2: 1}


def test_a_packed_trace_is_the_same(runs: Runs, tmp_path: Path) -> None:
    write_perfetto(runs.shown[:1], tmp_path / "trace.json")
    write_perfetto(runs.shown[:1], tmp_path / "trace.json.gz")
    assert gzip.decompress((tmp_path / "trace.json.gz").read_bytes()) == (tmp_path / "trace.json").read_bytes()
