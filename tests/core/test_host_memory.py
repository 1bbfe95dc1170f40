"""The C library refuses memory for the allocator's records: the call raises, and later calls work."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import allotment
from helpers.c_library import compiled
from helpers.lives import LIVES

TESTS = Path(__file__).parents[1]
CROWDED = ("crowded", "crowded streams", "crowded pools", "tags")
SWEPT = [("torch", name) for name in LIVES] + [
    pytest.param("dense", name, marks=[] if name in CROWDED else pytest.mark.slow)
    for name in LIVES
    if name != "sharing"  # dense placement has no handles in PyTorch's form
]
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the C library's memory is replaced by preloading")


@pytest.fixture(scope="module")
def failing_memory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("memory") / "failing_memory.so", TESTS / "helpers" / "failing_memory.c")


@pytest.mark.parametrize(("placement", "life"), SWEPT)
def test_a_life_goes_on_after_each_request_that_was_refused(failing_memory: Path, placement: str, life: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "helpers.starved_lives", placement, life],
        env={
            **os.environ,
            "PYTHONPATH": os.pathsep.join(sys.path),
            "LD_PRELOAD": str(failing_memory),
            "FAILING_MEMORY_FOLDER": os.path.join(os.path.dirname(allotment.__file__), ""),
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) > 10, "next to nothing was refused"
