"""Pausing on a real GPU: memory goes back to the device, contents and graphs are as they were."""

import os

import pytest

import allotment
from allotment.errors import OutOfMemoryError, PausedError

pytestmark = pytest.mark.gpu

MIB = 1 << 20


@pytest.fixture
def alloc(device):
    with allotment.Allocator(device) as made:
        yield made


def read(alloc, address, size):
    stream = allotment.Stream(alloc)
    found = bytearray(size)
    alloc.copy(found, address, size, stream)
    stream.synchronize()
    return bytes(found)


def test_contents_come_back_under_the_same_address_and_free_memory_rises(alloc):
    size = 200 * MIB
    pattern = os.urandom(MIB) * 200
    with allotment.tag("gpu weights"):
        address = alloc.malloc(size)
    stream = allotment.Stream(alloc)
    alloc.copy(address, pattern, size, stream)
    stream.synchronize()
    free = alloc.memory_info()[0]
    assert alloc.pause("gpu weights") >= size
    assert alloc.memory_info()[0] - free >= size
    with allotment.tag("gpu weights"), pytest.raises(PausedError):
        alloc.malloc(MIB)
    alloc.resume("gpu weights")
    alloc.check_invariants()
    assert read(alloc, address, size) == pattern
    alloc.free(address)


def test_a_resume_fails_whole_while_the_memory_is_taken(alloc, device):
    size = 400 * MIB
    with allotment.tag("gpu stolen"):
        address = alloc.malloc(size)
    alloc.pause("gpu stolen", keep="nothing")
    alloc.limit = alloc.stats()["reserved_bytes.all.current"] + 100 * MIB
    with pytest.raises(OutOfMemoryError):
        alloc.resume("gpu stolen")
    assert alloc.paused() == {"gpu stolen"}
    alloc.limit = None
    alloc.resume("gpu stolen")
    alloc.check_invariants()
    alloc.free(address)


@pytest.mark.parametrize("times", [20])
def test_nothing_drifts_over_many_pauses(alloc, times):
    with allotment.tag("gpu drift"):
        blocks = [alloc.malloc(size * MIB) for size in (1, 30, 100)]
    free = []
    for _ in range(times):
        alloc.pause("gpu drift")
        alloc.resume("gpu drift")
        free.append(alloc.memory_info()[0])
    assert free[0] == free[-1]
    for block in blocks:
        alloc.free(block)
