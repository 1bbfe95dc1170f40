"""Who asks learns what sleeps: before the memory is released, and when it is awake or gone."""

import pytest

import allotment
from allotment.errors import PausedError
from helpers.engine import MIB


@pytest.fixture
def alloc():
    with allotment.Allocator("host") as made:
        yield made


@pytest.fixture
def told(alloc):
    """What slept at each time when the allocator told."""
    seen = []
    alloc.sleep._tell(lambda: seen.append(alloc.sleep._ranges()))
    return seen


def block_in_tag(alloc, tag="w"):
    with allotment.tag(tag):
        return alloc.malloc(MIB)


def test_what_sleeps_is_told_with_its_addresses(alloc, told):
    block, other = block_in_tag(alloc), alloc.malloc(MIB)
    alloc.pause("w")
    ((base, size),) = told[-1]
    assert base <= block < base + size and not base <= other < base + size
    with pytest.raises(PausedError, match="tag 'w' on host is paused"):
        alloc.sleep._require_awake(block + 5)
    with pytest.raises(PausedError, match="tag 'w' on host is paused"):
        alloc.sleep._require_pool_awake(alloc.sleep.pools_of("w")[0])
    alloc.sleep._require_awake(other)
    alloc.resume("w")
    assert told[-1] == []
    alloc.sleep._require_awake(block)
    alloc.free(block)
    alloc.free(other)


def test_addresses_that_were_given_back_meanwhile_do_not_sleep(alloc, told):
    block = block_in_tag(alloc)
    alloc.pause("w", keep="nothing")
    alloc.free(block)
    alloc.empty_cache(alloc.sleep.pools_of("w")[0])
    assert alloc.sleep._ranges() == []
    alloc.sleep._require_awake(block)
    alloc.resume("w")
    assert [len(ranges) for ranges in told] == [1, 0]


def test_a_pause_that_cannot_be_told_has_changed_nothing(alloc):
    block = block_in_tag(alloc)
    before, seen = alloc.snapshot(), []

    def refuse_the_first():
        seen.append(alloc.sleep._ranges())
        if len(seen) == 1:
            raise ValueError("nobody listens")

    alloc.sleep._tell(refuse_the_first)
    with pytest.raises(ValueError, match="nobody listens"):
        alloc.pause("w")
    assert len(seen[0]) == 1 and seen[-1] == []
    assert alloc.paused() == set()
    assert alloc.snapshot()["segments"] == before["segments"]
    assert alloc.pause("w") > 0
    alloc.resume("w")
    alloc.free(block)
