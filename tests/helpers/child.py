"""Programs run in a process of their own, so that a crash or a hang is a failed test and not the end of all."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap


def output_of(program: str, *, seconds: float = 120) -> str:
    """What a program prints. Fails if it crashes, raises, writes to standard error or takes too long."""
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=seconds,
        check=False,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stderr) == (0, ""), f"ended with {done.returncode}:\n{done.stderr}"
    return done.stdout
