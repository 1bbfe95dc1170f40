"""The allocator as C code sees it."""

import ctypes

import pytest

import allotment
from allotment._allocators.caching.entry_points import entry_points_address
from allotment._allocators.caching.pool import next_user_pool_id
from helpers.entry_points import Drop, Filter, Table, table_of
from helpers.unraisable import reported


@pytest.fixture
def allocator():
    return allotment.Allocator("sim:1GiB")


@pytest.fixture
def table(allocator):
    return table_of(allocator)


def test_the_table_says_what_it_is(table):
    assert (table.size, table.version) == (ctypes.sizeof(Table), 1)


def test_memory_comes_from_the_allocator_and_returns(allocator, table):
    address = table.allocate(1000)
    assert allocator.stats()["requested_bytes.all.current"] == 1000
    assert table.free(address) == 1
    assert allocator.malloc(1000) == address


def test_no_bytes_are_no_address_and_no_failure(table):
    assert table.allocate(0) is None
    assert table.free(None) == 1


def test_out_of_memory_is_null_and_words(table):
    assert table.allocate(2 << 30) is None
    assert table.last_error().startswith("out of memory: tried to allocate 2147483648 bytes")


def test_an_absurd_size_is_refused_unseen(allocator, table):
    before = allocator.stats()
    assert table.allocate(1 << 60) is None
    assert table.last_error().startswith("out of memory: tried to allocate 1152921504606846976 bytes")
    assert allocator.stats() == before


def test_observers_are_called_and_do_not_change_the_failure(allocator, table):
    received = []

    def observer(facts):
        received.append(facts.requested)
        assert table.free(0x1234) == 0
        raise ZeroDivisionError

    allocator.limits.attach_out_of_memory_observer(observer)
    with reported() as seen:
        assert table.allocate(2 << 30) is None
    assert received == [2 << 30]
    assert seen == [(observer, "ZeroDivisionError: ")]
    assert table.last_error().startswith("out of memory: tried to allocate 2147483648 bytes")


def test_a_call_from_inside_says_so_whatever_failed_before(allocator, table):
    said = []

    def call_back(*entry):
        said.append((table.empty_cache_(table.context), table.last_error()))

    assert table.free(0x1234) == 0
    allocator.history.attach_trace_tracker(call_back)
    allocator.malloc(1)
    assert set(said) == {(0, "the allocator was called from inside itself")}


@pytest.mark.parametrize("what", [None, "host", allotment.PluggableAllocator(print, print)])
def test_only_caching_allocators_have_a_table(what):
    with pytest.raises(TypeError, match="only a caching Allocator or a Tenant has entry points, not"):
        entry_points_address(what)


def test_an_unknown_address_is_refused(table):
    assert table.free(0x1234) == 0
    assert table.last_error() == "invalid device pointer: 0x1234"


def test_words_are_cut_to_the_room_there_is(table):
    assert table.free(0x1234) == 0
    assert table.last_error(7) == "invalid"


def test_a_pool_serves_the_streams_that_are_accepted(allocator, table):
    asked, dropped = [], []
    accepts = Filter(lambda _, stream: asked.append(stream) or stream == 7)
    drop = Drop(dropped.append)
    pool = next_user_pool_id()
    assert table.begin_allocate_to_pool(pool, accepts, drop, 99) == 1
    inside = table.allocate(1000, stream=7)
    table.allocate(1000, stream=8)
    assert asked == [7, 8]
    assert allocator.pools.check_live_allocations(pool, {inside})
    assert table.end_allocate_to_pool(pool) == 1
    assert dropped == [99]
    assert table.release_pool(pool) == 1
    assert table.release_pool(pool) == 0


def test_a_pool_without_a_condition_serves_all(allocator, table):
    pool = next_user_pool_id()
    assert table.begin_allocate_to_pool(pool) == 1
    inside = table.allocate(1000, stream=3)
    assert allocator.pools.check_live_allocations(pool, {inside})
    assert table.end_allocate_to_pool(pool) == 1


def test_a_route_that_was_not_begun_takes_nothing(table):
    dropped = []
    accepts, drop = Filter(lambda *_: 1), Drop(dropped.append)
    pool = next_user_pool_id()
    assert table.begin_allocate_to_pool(pool) == 1
    assert table.begin_allocate_to_pool(pool, accepts, drop, 99) == 0
    assert dropped == []
    assert table.end_allocate_to_pool(pool) == 1
    assert table.end_allocate_to_pool(pool) == 0


def test_the_fraction_caps_what_is_reserved(allocator, table):
    assert table.set_memory_fraction_(table.context, 0.25, 0) == 1
    assert allocator.limits.memory_fraction == 0.25
    assert table.set_memory_fraction_(table.context, 1.5, 0) == 0
    assert allocator.limits.memory_fraction == 0.25
