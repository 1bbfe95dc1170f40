"""Allocators on different devices are independent."""

import pytest

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import AddressError, CheckpointError, OutOfMemoryError, PoolError
from helpers.engine import GIB, MIB, check, picture, reserved, segment_of, unchanged
from helpers.entry_points import table_of


@pytest.fixture
def devices():
    return [Allocator(SimulatedDevice(GIB, index), settings="") for index in (0, 1)]


def test_steps_on_one_device_leave_no_trace_on_the_other(devices):
    here, there = devices
    blocks = [there.malloc(MIB)]
    for step in (
        lambda: blocks.append(here.malloc(30 * MIB)),
        lambda: here.record_stream(blocks[1], 7),
        lambda: here.free(blocks[1]),
        lambda: setattr(here, "settings", "expandable_segments:True"),
        lambda: here.malloc(MIB),
        lambda: here.reset_peak_stats(),
        lambda: here.empty_cache(),
        lambda: setattr(here, "limit", 1),
    ):
        with unchanged(there):
            step()
        check(here)


def test_a_snapshot_names_its_device(devices):
    for index, alloc in enumerate(devices):
        alloc.record_history()
        alloc.malloc(1)
        snapshot = alloc.snapshot()
        assert [s["device"] for s in snapshot["segments"]] == [index]
        assert [len(trace) for trace in snapshot["device_traces"]] == [0] * index + [2]


def test_out_of_memory_names_its_device(devices):
    with pytest.raises(OutOfMemoryError) as caught:
        devices[1].malloc(2 * GIB)
    assert caught.value.facts.device_index == 1
    assert "#1" in str(caught.value)


def test_an_address_belongs_to_its_device(devices):
    here, there = devices
    here.malloc(MIB)
    far = there.malloc(MIB), there.malloc(MIB)
    for call in (here.free, here.inspection.base_allocation, lambda address: here.record_stream(address, 1)):
        with unchanged(here), pytest.raises(AddressError):
            call(far[1])


def from_a_callback_of(alloc, call):
    """Return what `call` returns or raises when it is made inside an allocator."""
    reported = []

    def call_once(*entry):
        if not reported:
            try:
                reported.append(call())
            except AddressError as error:
                reported.append(error)

    alloc.history.attach_trace_tracker(call_once)
    alloc.free(alloc.malloc(1))
    return reported[0]


def test_a_free_from_a_callback_of_one_device_frees_a_block_of_the_other(devices):
    here, there = devices
    near, far = here.malloc(MIB), there.malloc(2 * MIB)
    block = there.malloc(3 * MIB)
    assert isinstance(from_a_callback_of(here, lambda: here.free(block)), AddressError)
    assert there.stats()["allocation.all.current"] == 2
    assert from_a_callback_of(here, lambda: there.free(block)) is None
    assert there.stats()["allocation.all.current"] == 1
    assert from_a_callback_of(here, lambda: here.free(near)) is None
    assert here.stats()["allocation.all.current"] == 0
    there.free(far)


def test_c_code_that_tries_one_device_after_the_other_from_a_callback_frees_the_block(devices):
    """A framework finds the owner of an address in this way."""
    tables = [table_of(alloc) for alloc in devices]
    tables[0].allocate(MIB)
    _, block = (tables[1].allocate(size) for size in (2 * MIB, 3 * MIB))
    refused = from_a_callback_of(devices[0], lambda: (tables[0].free(block), tables[0].last_error()))
    assert refused == (0, f"invalid device pointer: {block:#x}")
    assert from_a_callback_of(devices[0], lambda: [table.free(block) for table in tables]) == [0, 1]
    assert devices[1].stats()["allocation.all.current"] == 1


def test_a_pool_serves_only_its_own_device(devices):
    """This holds for whichever device is used inside, and whichever was entered last."""
    here, there = devices
    pool = here.pool()
    with pool:
        assert segment_of(there, there.malloc(MIB))["segment_pool_id"] == (0, 0)
        other = there.pool()
        with other:
            inside = here.malloc(MIB), there.malloc(MIB)
        assert segment_of(here, inside[0])["segment_pool_id"] == pool.id
        assert segment_of(there, inside[1])["segment_pool_id"] == other.id
        assert segment_of(there, there.malloc(MIB))["segment_pool_id"] == (0, 0)
    assert pool.use_count == other.use_count == 1
    check(here)
    check(there)


def test_an_id_may_name_a_pool_on_each_device(devices):
    here, there = devices
    pool = here.pool()
    with pytest.raises(PoolError):
        there.pools.use_count(pool.id)
    before = picture(here)
    there.pools.begin_allocate_to_pool(pool.id)
    there.malloc(MIB)
    there.pools.end_allocate_to_pool(pool.id)
    there.pools.release(pool.id)
    there.empty_cache(pool.id)
    assert picture(here) == before
    assert reserved(there) == 2 * MIB
    pool.close()
    assert reserved(there) == 2 * MIB, "closing a pool concerns its own device"


def test_a_state_is_restored_where_it_was_taken(devices):
    here, there = devices
    pool, other = here.pool(), there.pool()
    state = pool.checkpoint()
    with unchanged(there), pytest.raises(CheckpointError, match="another allocator"):
        other.restore(state)


def test_two_allocators_on_one_device_share_its_memory_and_nothing_else():
    device = SimulatedDevice(100 * MIB)
    first, second = (Allocator(device, settings="") for _ in range(2))
    first.malloc(60 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        second.malloc(60 * MIB)
    assert (caught.value.facts.device_free, caught.value.facts.reserved) == (40 * MIB, 0)
    second.malloc(40 * MIB)
    assert device.used == reserved(first) + reserved(second)
    check(first)
    check(second)
