"""A short run of the program that checks every byte under dense placement."""

import pytest

from helpers.effort import some
from stress.dense_host import DenseStress

pytestmark = pytest.mark.threads


@pytest.mark.parametrize("views", [1, 8])
def test_no_block_on_four_streams_loses_a_byte(views):
    stress = DenseStress(f"placement:dense,dense_grain:256,dense_views:{views}", streams=4, seed=views)

    result = stress.run(steps=some(1500))

    assert result["wrong"] == []
    assert (result["dense.stitches"] > 0) == (views > 1)
