"""The responsiveness of `allotment view` on a long history: python benchmarks/viewer.py [--entries N] [--snapshot FILE]
[--json]

Makes a snapshot of ten million entries (a training run of many small layers, with stacks), reads it, serves it and
opens it in a headless browser. Prints the seconds to read it, from there to the first picture, the time of a frame
while the wheel zooms, the time of an answer while the moment is scrubbed, and the memory of server and page. Needs
`chromium` and `chromedriver`.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

import allotment
from allotment._viewer.runs import Runs
from allotment._viewer.server import PageServer
from helpers.browser import Browser

KIB, MIB = 1 << 10, 1 << 20
ENTRIES_OF_A_PAIR = 3
IDLE = "typeof app !== 'undefined' && app.isIdle"
WATCH_FRAMES = """
window.frameTimes = [];
let before = performance.now();
const watch = (now) => { frameTimes.push(now - before); before = now; requestAnimationFrame(watch); };
requestAnimationFrame(watch);
"""


class Training:
    """Requests of a training loop: parameters that stay, and activations of inputs of varying length."""

    def __init__(self, allocator: allotment.Allocator) -> None:
        self.allocator = allocator
        self.random = random.Random(1)
        self.kept: list[int] = []
        self.live: list[int] = []

    def parameters(self, count: int) -> None:
        for _ in range(count):
            self.kept.append(self.allocator.malloc(self.random.choice([2 * KIB, 16 * KIB, 300 * KIB])))

    def attention(self, length: int) -> None:
        for size in (length * 3, length * 8, length):
            self.live.append(self.allocator.malloc(size * KIB))

    def feed_forward(self, length: int) -> None:
        for size in (length * 4, length * 4, length):
            self.live.append(self.allocator.malloc(size * KIB))

    def backward(self, length: int) -> None:
        free, malloc = self.allocator.free, self.allocator.malloc
        while self.live:
            gradient = malloc(length * KIB)
            free(self.live.pop())
            free(gradient)

    def step(self, layers: int) -> None:
        length = self.random.randrange(64, 1024)
        for _ in range(layers):
            self.attention(length)
            self.feed_forward(length)
        self.backward(length)


def make_snapshot(path: Path, entries: int) -> None:
    allocator = allotment.Allocator("sim:80GiB", settings="compat:2.11")
    allocator.record_history(context="alloc")
    training = Training(allocator)
    training.parameters(20_000)
    layers = 48
    for _ in range(entries // (ENTRIES_OF_A_PAIR * 2 * 6 * layers) + 1):
        training.step(layers)
    allocator.history.dump_snapshot(path)


def resident_mib(field: str = "VmRSS") -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line.split()[1] for line in lines if line.startswith(field))) // 1024


def measured(snapshot: Path) -> dict[str, Any]:
    marks: dict[str, float] = {}
    with tempfile.TemporaryDirectory() as profile, Browser(Path(profile)) as browser:
        browser.open("about:blank")
        started = time.perf_counter()
        cpu: dict[str, float] = {}

        def progress(what: str) -> None:
            marks.setdefault(what, time.perf_counter() - started)
            cpu.setdefault(what, time.process_time())

        runs = Runs(progress=progress)
        runs.read(str(snapshot))
        server = PageServer(runs)
        served = time.perf_counter() - started
        browser.open(server.address)
        browser.wait_for(IDLE)
        shown, worked = time.perf_counter() - started, time.process_time()
        frames = zoomed(browser)
        answers = scrubbed(browser)
        browser.devtools("HeapProfiler.collectGarbage")
        heap = browser.run("return performance.memory.usedJSHeapSize") / MIB
        grouped = regrouped(browser)
        page = browser.page_mib()
        server.close()
    read = marks["replaying"]  # before that: the file, and the requests to the allocator
    return {
        "entries": runs.shown[0].about["events"],
        "blocks": len(runs.shown[0].timeline.lives),
        "read_s": round(read, 2),
        "first_picture_s": round(shown - read, 2),
        "of_that_server_cpu_s": round(worked - cpu["replaying"], 2),
        "of_that_replayed_s": round(marks["drawing"] - read, 2),
        "of_that_columns_s": round(served - marks["drawing"], 2),
        "zoom_frame_ms": frames,
        "scrub_answer_ms": answers,
        "other_grouping_s": grouped,
        "page_heap_mib": round(heap, 1),
        "page_rss_mib": page,
        "server_rss_mib": resident_mib(),
        "server_most_mib": resident_mib("VmHWM"),
    }


def zoomed(browser: Browser) -> dict[str, float]:
    """Return the times of frames while the wheel zooms all the way in and out again."""
    box = browser.run("return document.querySelector('.live .u-over').getBoundingClientRect().toJSON()")
    x, y = box["x"] + box["width"] * 0.6, box["y"] + box["height"] / 2
    browser.run(WATCH_FRAMES)
    for delta in [-120] * 60 + [120] * 60:
        browser.wheel(x, y, delta)
    browser.wait_for(IDLE)
    frames = browser.run("return frameTimes.slice(2)")
    return spread(frames)


def scrubbed(browser: Browser) -> dict[str, float]:
    """Return the times from the request for a moment to its picture, at moments all over the history."""
    times = []
    for i in range(40):
        times.append(
            browser.run(
                """const view = app.views[0], start = performance.now();
                app.moment = Math.round(app.views[0].overview.last * arguments[0]);
                return view._momentLoader.ask({moment: app.moment, start: view._addresses.window[0],
                  end: view._addresses.window[1], cells: view._addresses.cells, by: app.by, query: ""})
                  .then(() => performance.now() - start)""",
                (i * 0.618) % 1,
            )
        )
    return spread(times)


def regrouped(browser: Browser) -> float:
    started = time.perf_counter()
    browser.key("g")
    browser.wait_for(f"{IDLE} && app.views[0].series.by === app.by")
    return round(time.perf_counter() - started, 2)


def spread(values: list[float]) -> dict[str, float]:
    in_order = sorted(values)
    return {
        "median": round(statistics.median(values), 1),
        "p95": round(in_order[int(len(values) * 0.95)], 1),
        "worst": round(in_order[-1], 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--entries", type=int, default=10_000_000)
    parser.add_argument("--snapshot", type=Path, help="one that was made before; made there if there is none")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        snapshot = arguments.snapshot or Path(folder) / "long.pickle"
        if not snapshot.exists():
            make_snapshot(snapshot, arguments.entries)
        found = measured(snapshot)
    if arguments.json:
        print(json.dumps(found))
    else:
        for name, value in found.items():
            print(f"{name:18} {value}")


if __name__ == "__main__":
    main()
