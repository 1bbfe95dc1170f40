"""A short run of the program that shares, opens and closes many times."""

import pytest

from allotment import Allocator
from helpers.effort import some
from helpers.peer import Peer
from stress.sharing import SETTINGS, cycles, many

pytestmark = pytest.mark.threads


@pytest.mark.parametrize("kind", SETTINGS)
def test_nothing_is_left_of_many_cycles_and_of_many_open_at_once(kind):
    allocator = Allocator("host", settings=f"shareable:True,{SETTINGS[kind]}".rstrip(","))
    with Peer() as peer:
        seen = cycles(allocator, peer, some(200))
        (mapped, open_here, _), (mapped_after, open_after, _) = seen["owner"]
        assert mapped_after <= mapped and open_after <= open_here  # less, if objects of an earlier test end now
        before, after = seen["importer"]
        assert before[:2] == after[:2]
        at_once = some(500)
        held = many(allocator, peer, at_once)
        assert held["open"] == at_once
        assert held["before"][:2] == held["after"][:2]
        assert held["held"][1] - held["before"][1] == 2  # the link and the watch on its owner, for any number of blocks
