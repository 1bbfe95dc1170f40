"""Blocks in use that were allocated before a mark, or after it, by line."""

import pytest

from allotment.errors import RequestError
from helpers.engine import MIB, on_device


def keeper(alloc, size):
    return alloc.malloc(size)


def test_live_blocks_are_listed_by_line_and_by_the_side_of_the_mark():
    alloc = on_device()
    alloc.record_history("state")
    early = [keeper(alloc, 1000), keeper(alloc, 2000)]
    with alloc.history.mark() as mark:
        late = [alloc.malloc(3 * MIB)]
        alloc.free(early.pop())
        before, after = alloc.history.alive(before=mark), alloc.history.alive(after=mark)
    assert [(found.blocks, found.bytes) for found in before] == [(1, 1000)]
    assert " keeper" in before[0].where
    assert "test_leaks.py" in before[0].where
    assert any("by_the_side_of_the_mark" in place for place in before[0].stack)
    assert [(found.blocks, found.bytes) for found in after] == [(1, 3 * MIB)]
    assert [found.bytes for found in alloc.history.alive()] == [3 * MIB, 1000], "the most bytes first"
    for address in early + late:
        alloc.free(address)
    assert alloc.history.alive() == []


def test_an_address_that_is_used_anew_is_not_of_before():
    alloc = on_device()
    alloc.record_history("state")
    address = alloc.malloc(1000)
    mark = alloc.history.mark()
    alloc.free(address)
    assert alloc.malloc(1000) == address
    assert alloc.history.alive(before=mark) == []
    assert [found.blocks for found in alloc.history.alive(after=mark)] == [1]
    mark.close()
    mark.close()


def test_without_stacks_blocks_have_no_place():
    alloc = on_device()
    alloc.malloc(1000)
    assert [(found.where, found.blocks) for found in alloc.history.alive()] == [("", 1)]


def test_a_mark_is_of_one_allocator():
    alloc, other = on_device(), on_device()
    with other.history.mark() as mark:
        with pytest.raises(RequestError, match="not a mark"):
            alloc.history.alive(before=mark)
        with pytest.raises(RequestError, match="one side"):
            other.history.alive(before=mark, after=mark)
