"""Short runs of the threaded stress programs; their long runs are started by hand."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SECONDS = pytest.mark.parametrize("seconds", ["1", pytest.param("4", marks=pytest.mark.slow)])


@pytest.mark.threads
@SECONDS
@pytest.mark.parametrize("options", [[], ["--settings", "expandable_segments:True"], ["--pools"]])
def test_threads_never_see_each_others_memory(seconds: str, options: list[str]) -> None:
    program = Path(__file__).with_name("threads.py")
    done = subprocess.run(
        [sys.executable, str(program), "--seconds", seconds, *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.threads
@SECONDS
@pytest.mark.parametrize("options", [[], ["--settings", "expandable_segments:True"]])
def test_threads_in_the_entry_points_never_see_each_others_memory(seconds: str, options: list[str]) -> None:
    program = Path(__file__).with_name("entry_points.py")
    done = subprocess.run(
        [sys.executable, str(program), "--seconds", seconds, *options], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stderr + done.stdout
