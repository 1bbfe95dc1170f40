"""Programs run in a process of their own, so that a crash or a hang is a failed test and not the end of all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap

# Newer Pythons warn of a fork beside threads, which is what some of these programs are about.
FORKS_BESIDE_THREADS = "ignore:This process (pid:DeprecationWarning"
PATIENCE = 600
"""Seconds after which a program or a child that waits for ever is ended, and so fails.

Seconds of the clock, in which a process of little priority on a busy machine may get hardly any of a processor: under
a sanitizer, a program that needs one second has taken more than sixty.
"""


def output_of(program: str, *, seconds: float = PATIENCE) -> str:
    """What a program prints. Fails if it crashes, raises, writes to standard error or takes too long."""
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
