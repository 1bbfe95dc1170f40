"""The example of the page on sharing runs."""

import re
import subprocess
import sys

import pytest

from helpers.examples import EXAMPLES


@pytest.mark.threads
def test_two_processes_work_on_one_block():
    program = [sys.executable, str(EXAMPLES / "two_processes.py")]
    done = subprocess.run(program, capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stderr) == (0, "")
    assert re.fullmatch(r"2000000 = 2 x 1000000, written by process \d+\n", done.stdout)
