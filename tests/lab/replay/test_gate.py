"""Numbers in a snapshot that cannot describe memory are refused before they reach the engine.

Each is tested in a separate process: each once crashed it, or took gigabytes.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

PLACE = 1 << 40
SEGMENT = {"action": "segment_alloc", "addr": PLACE, "size": 2 << 20, "stream": 0}
ALLOC = {"action": "alloc", "addr": PLACE, "size": 512, "stream": 0}
OOM = {"action": "oom", "device_free": 0, "size": 512, "stream": 0}
BLOCK = {"address": PLACE, "size": 2 << 20, "requested_size": 512, "state": "active_allocated"}
LEFT = {"device": 0, "address": PLACE, "total_size": 2 << 20, "stream": 0, "segment_type": "small", "blocks": [BLOCK]}
DIVISIONS = {"roundup_power2_divisions": {str(1 << interval): 1 << 63 for interval in range(16)}}

HISTORIES: dict[str, list[dict[str, Any]]] = {
    "a request of nothing": [SEGMENT, {**ALLOC, "size": 0}],
    "a request of 2**64 - 1": [SEGMENT, {**ALLOC, "size": 2**64 - 1}],
    "a request of 2**60": [SEGMENT, {**ALLOC, "size": 2**60}],
    "a segment of nothing": [{**SEGMENT, "size": 0}, ALLOC],
    "a segment of 2**63": [{**SEGMENT, "size": 2**63}, ALLOC],
    "a segment of odd size": [{**SEGMENT, "size": 1000}, ALLOC],
    "a segment at an odd place": [{**SEGMENT, "addr": PLACE + 1}, ALLOC],
    "a segment at the end of the addresses": [{**SEGMENT, "addr": 2**64 - 512}, ALLOC],
    "a segment at 0": [{**SEGMENT, "addr": 0}, ALLOC],
    "2**59 bytes unmapped": [{**SEGMENT, "action": "segment_unmap", "size": 2**59}],
    "2**56 bytes mapped": [{**SEGMENT, "action": "segment_map", "size": 2**56}],
    "a free of 2**64 - 1": [{**ALLOC, "action": "free_requested", "size": 2**64 - 1}],
    "a stream that is not one": [SEGMENT, {**ALLOC, "stream": 2**64 - 1}],
    "out of memory for nothing": [{**OOM, "size": 0}],
    "more than any device has": [SEGMENT, {**ALLOC, "size": 1 << 42}],
    "more than so few requests can ask for": [SEGMENT, *[{**ALLOC, "size": 1 << 41}] * 100],
    "more segments than a device has room for": [
        {**SEGMENT, "addr": PLACE + number * (1 << 41), "size": 1 << 41} for number in range(3)
    ],
}
SNAPSHOTS: dict[str, dict[str, Any]] = {
    **{name: {"segments": [], "device_traces": [entries]} for name, entries in HISTORIES.items()},
    "a segment left of nothing": {"segments": [{**LEFT, "total_size": 0}], "device_traces": [[SEGMENT]]},
    "a segment left of 2**64 - 512": {"segments": [{**LEFT, "total_size": 2**64 - 512}], "device_traces": [[SEGMENT]]},
    "pages left of 2**60": {
        "segments": [{**LEFT, "total_size": 2**60, "is_expandable": True}],
        "device_traces": [[SEGMENT]],
    },
    "a block left of nothing": {"segments": [{**LEFT, "blocks": [{**BLOCK, "size": 0}]}], "device_traces": [[OOM]]},
    "a block left of 2**63": {"segments": [{**LEFT, "blocks": [{**BLOCK, "size": 2**63}]}], "device_traces": [[OOM]]},
    "a block at an odd place, there at first": {
        "device_traces": [
            [
                {"action": "free_requested", "addr": PLACE + 1, "size": 2 << 20, "stream": 0},
                {"action": "segment_unmap", "addr": PLACE, "size": 1 << 32, "stream": 0},
            ]
        ]
    },
    "divisions of 3": {
        "device_traces": [[SEGMENT, ALLOC]],
        "allocator_settings": {"roundup_power2_divisions": {str(1 << interval): 3 for interval in range(16)}},
    },
    "a split size of 5": {"device_traces": [[SEGMENT, ALLOC]], "allocator_settings": {"max_split_size": 5}},
}
TAKEN: dict[str, dict[str, Any]] = {
    "out of memory at first": {"segments": [], "device_traces": [[OOM, SEGMENT, ALLOC]]},
    "out of memory alone": {"segments": [], "device_traces": [[OOM]]},
    "divisions of 2**63": {"device_traces": [[SEGMENT, ALLOC]], "allocator_settings": DIVISIONS},
    "divisions of 2**63 in the text": {
        "device_traces": [[SEGMENT, ALLOC]],
        "allocator_settings": {"PYTORCH_CUDA_ALLOC_CONF": "roundup_power2_divisions:9223372036854775808"},
    },
}


WAYS: dict[str, list[str]] = {
    "as recorded": [],
    "expandable": ["--settings", "expandable_segments:True"],
    "on a small device": ["--capacity", "1GiB"],
}
REPLAYS = """
import json, os, signal, sys, tempfile
import allotment._cli.replay, allotment.lab.replay.run
from allotment._cli import main

outcomes = []
for arguments in json.load(sys.stdin):
    out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()
    child = os.fork()
    if child == 0:
        signal.alarm(120)
        os.dup2(out.fileno(), 1)
        os.dup2(err.fileno(), 2)
        main(arguments)
    code = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    out.seek(0), err.seek(0)
    outcomes.append([code, out.read().decode(), err.read().decode()])
print(json.dumps(outcomes))
"""


@dataclass
class Outcome:
    code: int
    out: str
    err: str
    path: Path


@pytest.fixture(scope="module")
def replayed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, str], Outcome]:
    """Return what replay printed for each snapshot. One program forks for each, because starting one takes longer."""
    folder = tmp_path_factory.mktemp("snapshots")
    runs = [(name, "as recorded") for name in SNAPSHOTS] + [(name, way) for name in TAKEN for way in WAYS]
    paths = {name: folder / f"{number}.pickle" for number, name in enumerate({**SNAPSHOTS, **TAKEN})}
    for name, content in {**SNAPSHOTS, **TAKEN}.items():
        paths[name].write_bytes(pickle.dumps(content))
    done = subprocess.run(
        [sys.executable, "-c", REPLAYS],
        input=json.dumps([["replay", str(paths[name]), "--json", *WAYS[way]] for name, way in runs]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    outcomes = json.loads(done.stdout)
    return {run: Outcome(*said, paths[run[0]]) for run, said in zip(runs, outcomes, strict=True)}


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_a_snapshot_that_cannot_be_is_refused_by_name(replayed: dict[tuple[str, str], Outcome], name: str) -> None:
    done = replayed[name, "as recorded"]
    assert done.code == 2, done.err
    assert done.out == ""
    assert done.err.startswith(f"allotment: {done.path}: ")
    assert "Traceback" not in done.err


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", TAKEN)
def test_one_that_can_be_is_replayed(replayed: dict[tuple[str, str], Outcome], name: str, way: str) -> None:
    done = replayed[name, way]
    assert done.code in (0, 1), done.err
    assert not done.err


@pytest.mark.parametrize(
    "text", ["roundup_power2_divisions:9223372036854775808", "roundup_power2_divisions:36028797018963968"]
)
def test_divisions_of_any_power_of_two_can_be_worked_with(text: str) -> None:
    program = """
import allotment
allocator = allotment.Allocator("sim:1GiB")
allocator.free(allocator.malloc(100))
allocator.inspection.check_invariants()
"""
    done = subprocess.run([sys.executable, "-c", program], env={**os.environ, "ALLOTMENT_CONF": text}, check=False)
    assert done.returncode == 0
