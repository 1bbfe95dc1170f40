"""Views that several tests use."""

from __future__ import annotations

import pickle
from collections.abc import Iterator
from pathlib import Path

import pytest

import allotment
from allotment._viewer.runs import Runs
from allotment._viewer.server import PageServer

TRACES = Path(__file__).parents[1] / "traces"
MIB = 1 << 20
HOSTILE = '</script><script>window.broken = 1</script><img src=x onerror="window.broken = 1">'


@pytest.fixture(scope="session")
def runs() -> Runs:
    """A run on three streams, side by side with itself under other settings."""
    runs = Runs()
    runs.read(str(TRACES / "streams_prefetch.default.pickle.gz"))
    runs.try_settings("expandable_segments:True")
    return runs


@pytest.fixture(scope="session")
def server(runs: Runs) -> Iterator[PageServer]:
    server = PageServer(runs)
    yield server
    server.close()


@pytest.fixture(scope="session")
def hostile_snapshot(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A snapshot whose file name, files, functions and settings are HTML."""
    allocator = allotment.Allocator("sim:1GiB", settings="compat:2.11")
    allocator.record_history(context="all", stacks="python")
    for size in range(1, 9):
        allocator.malloc(size * MIB)
    allocator.free(allocator.malloc(30 * MIB))
    snapshot = allocator.snapshot()
    blocks = [block for segment in snapshot["segments"] for block in segment["blocks"]]
    for entry in [*snapshot["device_traces"][0], *blocks]:
        entry["frames"] = [{"name": HOSTILE, "filename": f"/{HOSTILE}.py", "line": 7}]
    path = tmp_path_factory.mktemp("hostile") / "<img src=x onerror=window.broken=1>.pickle"
    path.write_bytes(pickle.dumps(snapshot))
    return path
