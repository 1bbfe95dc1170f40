"""Libraries in C that tests load or preload, compiled where there is a compiler."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(library: Path, *arguments: str | Path) -> Path:
    """The library, made of the sources and options given. Without a compiler the test is skipped."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler on this machine")
    subprocess.run([compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", library, *arguments], check=True)
    return library
