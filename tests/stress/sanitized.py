"""Programs that order their streams correctly, under the sanitizer, which must report nothing.

    python tests/stress/sanitized.py [tests=FOLDER,...] [kept_back=FOLDER,...] [demo] [traces=FILE,...]

tests       tests of the engine, the allocators and the devices, every allocator of theirs watched, and memory reused at
            once (`helpers/watched.py`). Many fail then, since redzones change what is where: only reports count
kept_back   the same with quarantine
demo        the training job of `allotment demo`, by each placement
traces      recorded histories on a simulated device, each block used on its stream, and by another one, which waits for
            it and is recorded, where the recorded one was not free at once

Prints one JSON object for each part; exit 1 if anything was reported.
"""

from __future__ import annotations

import json
import sys
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import hypothesis
import pytest

TESTS = Path(__file__).parents[1]
sys.path.insert(0, str(TESTS))

import allotment  # noqa: E402
from allotment._core.edge.words import Action  # noqa: E402
from allotment._formats.torch_snapshot import Trace, read_snapshot  # noqa: E402
from allotment.lab.demo import train  # noqa: E402
from helpers.watched import Seen, watching  # noqa: E402

SETTINGS = ("", "expandable_segments:True", "placement:dense")
FOLDERS = (
    *("core", "allocators", "devices/host", "devices/simulated", "devices/test_streams.py"),
    "stress/test_host_stress.py",
)


def figures(seen: Seen, **more: Any) -> dict[str, Any]:
    """Return the findings, for people to read."""
    return {
        **more,
        "allocators": seen.allocators,
        "accesses": seen.accesses,
        "reports": [f"{running}: {report}" for running, report in seen.reports],
    }


class NamesTests:
    """Lets reports name the running test."""

    def __init__(self, seen: Seen) -> None:
        self.seen, self.tests, self.failed = seen, 0, 0

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_setup(self, item: pytest.Item) -> None:
        self.tests += 1
        self.seen.running = item.nodeid

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.failed += report.failed


def watched_tests(folders: tuple[str, ...], *, keeps_back: bool) -> dict[str, Any]:
    """The sanitizer's own tests pass `sanitize` themselves, and are not counted."""
    chosen = [str(TESTS / folder) for folder in folders or FOLDERS]
    options = ["-q", "--tb=no", "--no-summary", "--no-header", "-m", "not gpu and not slow", "-p", "no:cacheprovider"]
    hypothesis.settings.register_profile("one failure is enough", phases=[hypothesis.Phase.generate])
    hypothesis.settings.load_profile("one failure is enough")
    with watching(keeps_back=keeps_back) as seen, redirect_stdout(sys.stderr):
        names = NamesTests(seen)
        pytest.main([*options, *chosen], plugins=[names])
    return figures(seen, tests=names.tests, failed=names.failed)


def tests(*folders: str) -> dict[str, Any]:
    """Memory is reused as it is without a sanitizer."""
    return watched_tests(folders, keeps_back=False)


def kept_back(*folders: str) -> dict[str, Any]:
    """Freed memory stays in quarantine for a while."""
    return watched_tests(folders, keeps_back=True)


def demo(steps: int = 60) -> dict[str, Any]:
    """The arrays of the job are the arguments of its functions."""
    with watching() as seen:
        losses = set()
        for settings in SETTINGS:
            with allotment.Allocator("host", settings=settings) as allocator:
                losses.add(train(allocator, steps).last_loss)
    return figures(seen, steps=steps, losses=sorted(losses))


def replay(trace: Trace, settings: str) -> None:
    """Replay requests and frees of a history, with ordered streams and accesses."""
    with allotment.Allocator("sim:400GiB", settings=settings) as allocator:
        streams = {int(number): allotment.Stream(allocator) for number in set(trace.stream.tolist())}
        other = allotment.Stream(allocator)
        live: dict[int, tuple[int, int]] = {}
        actions, addresses = trace.action.tolist(), trace.address.tolist()
        sizes, numbers = trace.size.tolist(), trace.stream.tolist()
        for entry, action in enumerate(actions):
            if action == Action.ALLOC:
                stream = streams[numbers[entry]]
                live[addresses[entry]] = allocator.malloc(sizes[entry], stream), numbers[entry]
            elif action == Action.FREE_REQUESTED and addresses[entry] in live:
                address, number = live.pop(addresses[entry])
                is_free_at_once = actions[entry + 1 : entry + 2] == [Action.FREE_COMPLETED]
                if not is_free_at_once:
                    other.wait(streams[number].record())
                    allocator.inspection.touch(address, other)
                    allocator.record_stream(address, other)
                allocator.free(address)
        for address, _ in live.values():
            allocator.free(address)


def traces(*files: str) -> dict[str, Any]:
    """Run each under each placement."""
    chosen = files or sorted(map(str, (TESTS / "traces").glob("*.pickle.gz")))
    entries = 0
    with watching() as seen:
        for name in chosen:
            for trace in read_snapshot(name).traces:
                for settings in SETTINGS:
                    seen.running = f"{Path(name).name} {settings}"
                    replay(trace, settings)
                    entries += len(trace.action)
    return figures(seen, files=len(chosen), entries=entries)


PARTS = {part.__name__: part for part in (tests, kept_back, demo, traces)}


def main(wanted: list[str]) -> int:
    """Whether anything was reported."""
    reported = 0
    for part in wanted or list(PARTS):
        name, *chosen = part.replace("=", ",").split(",")
        found = PARTS[name](*chosen)
        reported += len(found["reports"])
        print(json.dumps({name: found}), flush=True)
    return 1 if reported else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
