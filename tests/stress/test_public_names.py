"""A short run of the program that calls all public names with any arguments; its long runs are started by hand."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.threads
def test_nothing_that_is_called_with_anything_crashes_hangs_or_spoils_an_allocator() -> None:
    program = Path(__file__).with_name("public_names.py")
    done = subprocess.run(
        [sys.executable, str(program), "--seconds", "4", "--steps", "400", "--seed", "12"],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads(done.stdout)
    assert result["cases"] > 0 and result["failed"] == {}
    assert result["host_writes"] > 0
