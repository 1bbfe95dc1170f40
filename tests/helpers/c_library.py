"""Compiles libraries in C that tests load or preload."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest


def compiled(library: Path, *arguments: str | Path) -> Path:
    """Return a library made of these sources with these options. Skips the test if no compiler exists."""
    compiler = shutil.which("cc") or pytest.skip("no C compiler on this machine")
    subprocess.run([compiler, "-std=gnu11", "-O1", "-shared", "-fPIC", "-o", library, *arguments], check=True)
    return library
