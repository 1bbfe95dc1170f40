"""The demo on a device that has no memory behind its addresses, in a process of its own: it ended it once."""

import os
import subprocess
import sys

import pytest


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


def test_the_demo_shows_the_same_job_under_other_settings_and_what_to_type_next() -> None:
    done = run_demo(COLUMNS="100")
    assert done.returncode == 0
    assert "as it ran" in done.stdout and "placement:dense" in done.stdout
    assert "allotment tune sample" in done.stdout


def test_a_snapshot_that_cannot_be_written_is_refused_before_the_training() -> None:
    done = run_demo("--snapshot", "/no/such/folder/run.pickle")
    assert done.returncode == 2
    assert not done.stdout.strip()
    assert "/no/such/folder/run.pickle" in done.stderr and "Traceback" not in done.stderr


def test_a_terminal_with_ascii_alone_gets_a_drawing_too() -> None:
    done = run_demo(PYTHONIOENCODING="ascii", PYTHONUTF8="0")
    assert done.returncode == 0
    assert done.stdout.isascii() and "Traceback" not in done.stderr
