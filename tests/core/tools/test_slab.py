"""Records of one size, against a set of addresses."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

TAKE, GIVE = "take", "give"
STEPS = st.lists(st.tuples(st.sampled_from([TAKE, TAKE, GIVE]), st.integers(0, 1 << 20)), max_size=400)


@settings(deadline=None)
@given(size=st.integers(8, 200), steps=STEPS)
def test_no_record_is_given_out_twice_and_none_overlaps_another(tools, size, steps):
    slab = tools.Records(size)
    taken = {}
    for number, (step, choice) in enumerate(steps):
        if step == TAKE:
            assert slab.reserve(1)
            record = slab.take()
            assert record not in taken
            assert record % 16 == 0
            taken[record] = number % 256
            slab.fill(record, number % 256)
        elif taken:
            record = sorted(taken)[choice % len(taken)]
            del taken[record]
            spare = slab.spare
            slab.give(record)
            assert slab.spare == spare + 1
        assert all(slab.content(record) == bytes([mark]) * size for record, mark in taken.items())


@settings(deadline=None)
@given(given_back=st.permutations(range(8)))
def test_the_record_freed_last_is_taken_first(tools, given_back):
    slab = tools.Records(64)
    assert slab.reserve(8)
    records = [slab.take() for _ in range(8)]
    for place in given_back:
        slab.give(records[place])
    assert [slab.take() for _ in range(8)] == [records[place] for place in reversed(given_back)]


@pytest.mark.parametrize("count", [0, 1, 127, 128, 129, 1000])
def test_what_is_reserved_can_be_taken_without_growing(tools, count):
    slab = tools.Records(24)
    assert slab.reserve(count)
    before = slab.spare
    assert before >= count
    assert len({slab.take() for _ in range(count)}) == count
    assert slab.spare == before - count


def test_records_as_large_as_a_cache_line_start_on_one(tools):
    slab = tools.Records(64)
    assert slab.reserve(300)
    assert {slab.take() % 64 for _ in range(300)} == {0}


def test_records_stay_apart_when_there_are_so_many_that_groups_are_large_pages(tools):
    slab, count = tools.Records(120), 100_000  # 65,536 in small groups, then three large pages
    assert slab.reserve(count)
    records = sorted(slab.take() for _ in range(count))
    assert {record % 16 for record in records} == {0}
    assert min(after - before for before, after in pairwise(records)) >= 120
    for record in records[::997]:
        slab.fill(record, record % 251)
    assert all(slab.content(record) == bytes([record % 251]) * 120 for record in records[::997])
    for record in records:
        slab.give(record)
    assert slab.spare >= count


def test_a_cleared_slab_can_be_used_again(tools):
    slab = tools.Records(32)
    assert slab.reserve(200)
    slab.clear()
    assert slab.spare == 0
    assert slab.reserve(1)
    slab.fill(slab.take(), 7)
