"""A short run of the program that writes memory at once beside queued work."""

import random

import pytest

from helpers.effort import some
from stress.host_writes import HostWrites

pytestmark = pytest.mark.threads


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense"])
def test_no_byte_that_the_calling_thread_wrote_is_lost_to_queued_work(settings):
    writes = HostWrites(settings, random.Random(7))

    result = writes.run(steps=some(600))

    assert result["made"] > 0 and result["left"] > 0
