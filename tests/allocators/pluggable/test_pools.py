"""Pools of a caching allocator whose segments come from a pluggable one: the caching allocator still caches."""

import gc
import sys
import weakref

import pytest

from allotment import Allocator, OutOfMemoryError, PluggableAllocator, PoolError, SimulatedDevice
from helpers import plugged_memory
from helpers.engine import BUFFER, MIB, SEGMENT, check, on_device
from helpers.plugged_memory import Memory


@pytest.fixture
def reported(monkeypatch):
    """Return the exceptions that could not be raised."""
    exceptions = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: exceptions.append(report.exc_value))
    return exceptions


@pytest.fixture(scope="module")
def library(tmp_path_factory):
    return plugged_memory.build(tmp_path_factory.mktemp("plug"))


@pytest.fixture
def memory():
    return Memory()


@pytest.fixture
def plug(memory):
    return PluggableAllocator(memory.alloc, memory.free)


def test_requests_are_always_whole_segments(plug, memory):
    alloc = on_device()
    with alloc.pool(allocator=plug):
        for size in (1, MIB, MIB + 1, 21 * MIB, 33 * MIB):
            alloc.malloc(size, 4)
    assert [call[1] for call in memory.calls] == [BUFFER, SEGMENT, 22 * MIB, 34 * MIB]
    assert {call[3] for call in memory.calls} == {4}
    assert alloc.device.used == 0
    check(alloc)


def test_caching_stays_ours(plug, memory):
    alloc = on_device()
    with alloc.pool(allocator=plug) as pool:
        first = alloc.malloc(1000)
        alloc.free(first)
        assert alloc.malloc(2000) == first
        assert len(memory.calls) == 1
        assert pool.reserved_bytes == plug.stats()["allocated_bytes.all.current"] == BUFFER


def test_segments_return_with_what_was_recorded(plug, memory):
    alloc = on_device()
    pool = alloc.pool(allocator=plug)
    with pool:
        address = alloc.malloc(1000, 6)
    alloc.free(address)
    pool.close()
    assert memory.calls == [("alloc", BUFFER, 0, 6), ("free", address, BUFFER, 0, 6)]
    assert plug.stats()["allocated_bytes.all.current"] == 0


def test_functions_get_the_device_of_the_pool(plug, memory):
    for index in (2, 5, 2):
        alloc = Allocator(SimulatedDevice(1 << 30, index), settings="")
        with alloc.pool(allocator=plug):
            alloc.malloc(1)
    assert [call[2] for call in memory.calls if call[0] == "alloc"] == [2, 5, 2]


def test_the_pool_shares_ownership(memory):
    alloc = on_device()
    plug = PluggableAllocator(memory.alloc, memory.free)
    alive = weakref.ref(plug)
    pool = alloc.pool(allocator=plug)
    del plug
    gc.collect()
    with pool:
        address = alloc.malloc(10)
    assert alive() is not None
    alloc.free(address)
    pool.close()
    del pool
    gc.collect()
    assert alive() is None


def test_a_pool_that_cannot_be_made_keeps_nothing(memory):
    plug = PluggableAllocator(memory.alloc, memory.free)
    alive = weakref.ref(plug)
    alloc = on_device()
    alloc.pools.create_or_incref((0, 900))
    with pytest.raises(PoolError, match="exists already"):
        alloc.pools.create_or_incref((0, 900), plug)
    del plug
    gc.collect()
    assert alive() is None


@pytest.mark.parametrize("answer", [0, None, MemoryError("full")])
def test_a_refusal_is_out_of_memory(plug, memory, answer):
    alloc = on_device()
    heard = []
    plug.limits.attach_out_of_memory_observer(heard.append)
    with alloc.pool(allocator=plug):
        memory.script = [answer] * 10
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(10)
    assert plug.stats()["num_ooms"] == len(memory.calls) > 0
    assert heard == []  # the pool's allocator calls its own observers
    check(alloc)


def test_a_function_that_raises_something_else_is_reported_and_out_of_memory(plug, memory, reported):
    alloc = on_device()
    with alloc.pool(allocator=plug):
        memory.script = [ValueError("broken")] * 10
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(10)
    assert "ValueError: broken" in str(reported[0])
    check(alloc)


@pytest.mark.parametrize("freed_behind_its_back", [False, True])
def test_a_segment_that_cannot_be_freed_is_reported_and_forgotten(plug, memory, freed_behind_its_back, reported):
    alloc = on_device()
    pool = alloc.pool(allocator=plug)
    with pool:
        address = alloc.malloc(10)
    alloc.free(address)
    if freed_behind_its_back:
        plug.free(address)
    else:
        memory.script = [ValueError("broken")]
    pool.close()
    reason = "Trying to free a pointer not allocated here" if freed_behind_its_back else "ValueError: broken"
    assert reason in str(reported[0])
    assert plug.stats()["allocated_bytes.all.current"] == 0
    check(alloc)


def test_functions_may_be_in_c(library):
    alloc = on_device()
    plug = PluggableAllocator.from_library(library.path, "counted_alloc", "counted_free")
    out = library.count("bytes_out")
    pool = alloc.pool(allocator=plug)
    with pool:
        address = alloc.malloc(1000, 3)
    assert library.count("bytes_out") - out == BUFFER
    assert plug.history.segments()[0]["address"] <= address
    alloc.free(address)
    pool.close()
    assert (library.count("bytes_out") - out, library.count("wrong_frees")) == (0, 0)


def test_a_refusal_in_c_is_out_of_memory(library):
    alloc = on_device()
    plug = PluggableAllocator.from_library(library.path, "null_alloc", "noted_free")
    with alloc.pool(allocator=plug), pytest.raises(OutOfMemoryError):
        alloc.malloc(10)


def test_memory_of_another_allocator_can_be_lent():
    """Both allocators are this package's: one for large pieces below, and one with pools above."""
    below = on_device()
    plug = PluggableAllocator(
        lambda size, device, stream: below.malloc(size, stream), lambda pointer, *_: below.free(pointer)
    )
    above = on_device()
    pool = above.pool(allocator=plug)
    with pool:
        address = above.malloc(5 * MIB)
    assert below.stats()["requested_bytes.all.current"] == SEGMENT
    above.free(address)
    pool.close()
    assert below.stats()["requested_bytes.all.current"] == 0
    check(below)
    check(above)
