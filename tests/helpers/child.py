"""Runs programs in a separate process, so that a crash or a hang fails one test and does not end all of them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# Newer Pythons warn of a fork beside threads, which some of these programs test.
FORKS_BESIDE_THREADS = "ignore:This process (pid:DeprecationWarning"
PATIENCE = 600
"""Seconds after which a program or a child that hangs is killed, which fails the test. This is wall-clock time, in
which a low-priority process on a busy machine may get little of a processor: under a sanitizer, a program that needs
one second has taken more than sixty.
"""


def output_of(program: str, *, seconds: float = PATIENCE) -> str:
    """Return what a program prints. Fails if it crashes, raises, writes to standard error or takes too long."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "PYTHONWARNINGS": FORKS_BESIDE_THREADS},
    )
    assert (done.returncode, done.stderr) == (0, ""), f"ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
