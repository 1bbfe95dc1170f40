"""A few lives of the program that combines dense placement with all other features."""

import pytest

from helpers.effort import some
from stress.dense_combinations import STEPS, life

pytestmark = pytest.mark.threads


def test_no_life_that_combines_everything_loses_a_byte():
    taken = sum((life(seed, steps=400) for seed in range(some(6))), start=life(100, steps=400))

    assert taken["compared"] > 0
    assert {name for name, _ in STEPS} <= set(taken)
