"""Races in programs of the installed PyTorch, on a CUDA driver and runtime made of host memory."""

import json
from pathlib import Path

import pytest

from helpers.torch_on_host_memory import NEEDED

RACES = Path(__file__).parents[2] / "gpu" / "programs" / "torch_races.py"

pytestmark = NEEDED


@pytest.mark.parametrize("mode", ["hooks", "deep"])
def test_races_are_found_and_programs_in_order_are_not_reported(run, mode):
    found = json.loads(run(RACES, mode).splitlines()[-1])
    assert {name: wrong for name, wrong in found.items() if wrong} == {}
    assert len(found) > 20
