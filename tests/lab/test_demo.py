"""The demo on a device that has no memory behind its addresses, in a process of its own: it ended it once."""

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
