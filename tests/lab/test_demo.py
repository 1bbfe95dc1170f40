"""The demo on a device that has no memory behind its addresses, in a separate process, which it once crashed."""

import json
import os
import subprocess
import sys

import pytest

from allotment._texts import exact_size
from allotment.lab import replay


@pytest.mark.parametrize("device", ["sim:1GiB", "sim:80GiB"])
def test_a_device_without_memory_is_refused(device):
    done = subprocess.run(
        [sys.executable, "-m", "allotment", "demo", "--device", device], capture_output=True, text=True, check=False
    )
    assert done.returncode == 3
    assert not done.stdout.strip()
    assert "the demo needs memory that this process can read" in done.stderr
    assert "run it with --device host" in done.stderr
    assert "Traceback" not in done.stderr


def run_demo(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "allotment", "demo", "--steps", "10", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, **environment})


def test_the_demo_begins_with_the_question_and_answers_it() -> None:
    done = run_demo(COLUMNS="80")
    assert done.returncode == 0
    lines = done.stdout.strip().splitlines()
    assert lines[0].startswith("This job needed 8,694.0 MiB. Does it have to?")
    captions = [line for line in lines if line.endswith("───")]
    assert [caption.split()[0] for caption in captions] == ["This", "Why?", "No:", "The", "Next:"]
    assert "No: 4,584.0 MiB will do." in captions[2]
    assert "as it ran" in done.stdout and "placement:dense" in done.stdout
    assert "python -m allotment.torch --dense PROGRAM" in done.stdout
    assert "allotment tune sample" in lines[-2]


@pytest.mark.parametrize("columns", [40, 60, 80])
def test_no_drawing_of_the_demo_is_broken(columns: int) -> None:
    lines = run_demo(COLUMNS=str(columns)).stdout.splitlines()
    drawn = [line for line in lines if line.startswith(("  active", "  reserved"))]
    assert len(drawn) == 6
    assert all(line.endswith("iB") for line in drawn)
    bars = [line for line in lines if "MiB  █" in line]
    assert len(bars) == 4
    assert columns < 60 or all(len(line) <= columns for line in drawn)
    assert columns < 80 or all(len(line) <= columns for line in bars)
    assert not any("…" in line for line in lines)


def test_the_size_beside_a_curve_is_the_peak_of_what_is_drawn() -> None:
    sample = replay("sample")
    drawn = [line for line in run_demo().stdout.splitlines() if line.startswith("  active")]
    assert max(sample.live) == sample.peak_active_bytes
    assert drawn[0].endswith(exact_size(sample.peak_active_bytes))


def test_the_demo_reports_both_jobs_to_programs() -> None:
    report = json.loads(run_demo("--json").stdout)
    assert report["recorded"]["peak_reserved_bytes"] == 8694 << 20
    assert report["recorded"]["best"]["peak_reserved_bytes"] == 4584 << 20
    assert report["steps"] == 10 and report["candidates"]


def test_a_snapshot_that_cannot_be_written_is_refused_before_the_training() -> None:
    done = run_demo("--snapshot", "/no/such/folder/run.pickle")
    assert done.returncode == 2
    assert not done.stdout.strip()
    assert "/no/such/folder/run.pickle" in done.stderr and "Traceback" not in done.stderr


def test_a_terminal_with_only_ascii_gets_a_drawing_too() -> None:
    done = run_demo(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii() and "Traceback" not in done.stderr
