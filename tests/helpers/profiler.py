"""Stands for a profiler that receives NVTX calls: programs run under a library that records them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from helpers.c_library import compiled


def heard(program: str, folder: Path) -> list[str]:
    """Return what a program, run in a separate process, reports to a profiler: a line for each call."""
    pytest.importorskip("nvtx", reason="the package nvtx is not installed")
    listener = compiled(folder / "listener.so", Path(__file__).parent / "nvtx_listener.c")
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(sys.path),
        "NVTX_INJECTION64_PATH": str(listener),
        "NVTX_HEARD": str(folder / "heard"),
    }
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], env=environment, check=True, timeout=240)
    return (folder / "heard").read_text().splitlines()


def ranges_of(lines: list[str]) -> set[str]:
    """Return the names of all ranges, each of which must have ended."""
    begun = [line.split()[1] for line in lines if line.startswith("push ")]
    assert len(begun) == lines.count("pop")
    return set(begun)


def samples_of(lines: list[str], counter: str) -> list[int]:
    return [int(line.split()[-1]) for line in lines if line.startswith(f"count {counter} ")]
