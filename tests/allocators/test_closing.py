"""The end of buffers and allocators: `with`, `close`, slices, and the report of blocks that are still in use."""

from __future__ import annotations

import gc
import os
import warnings

import numpy as np
import pytest

import allotment
from allotment.errors import AddressError, RequestError
from helpers.child import output_of

KINDS = {
    "caching": lambda: allotment.Allocator("sim:1GiB"),
    "stream-ordered": lambda: allotment.AsyncAllocator("sim:1GiB"),
    "pluggable": lambda: allotment.PluggableAllocator(
        lambda size, device, stream: 1 << 20, lambda pointer, size, device, stream: None
    ),
}


@pytest.fixture(params=KINDS.values(), ids=KINDS.keys())
def any_allocator(request):
    return request.param()


@pytest.fixture
def allocator():
    allocator = allotment.Allocator("host")
    yield allocator
    allocator.inspection.check_invariants()


def live(allocator):
    return allocator.stats()["allocation.all.current"]


# Buffers.


def test_a_buffer_is_closed_at_the_end_of_a_with(any_allocator):
    with any_allocator.empty(1000) as buffer:
        assert len(buffer) == 1000 and not buffer.closed
    assert buffer.closed
    buffer.close()
    with pytest.raises(RequestError, match="Buffer of 1000 bytes closed"):
        buffer.address  # noqa: B018
    with pytest.raises(AddressError):
        any_allocator.free(buffer)


def test_a_closed_buffer_gave_its_block_back_once(allocator):
    buffer = allocator.empty(1000)
    address = buffer.address
    buffer.close()
    assert live(allocator) == 0
    assert allocator.malloc(1000) == address
    del buffer
    assert live(allocator) == 1
    allocator.free(address)


@pytest.mark.parametrize("see", [memoryview, np.asarray, np.from_dlpack, lambda buffer: buffer[1:]])
def test_a_buffer_is_not_closed_under_those_who_see_it(allocator, see):
    buffer = allocator.empty(1000)
    view = see(buffer)
    with pytest.raises(BufferError, match="cannot be closed: 1 arrays, DLPack capsules or slices use its memory"):
        buffer.close()
    with pytest.raises(BufferError):
        allocator.free(buffer)
    assert live(allocator) == 1
    del view
    buffer.close()
    assert live(allocator) == 0


def test_an_allocator_frees_only_its_own_buffers(any_allocator):
    buffer = any_allocator.empty(1000)
    with pytest.raises(AddressError, match="belongs to another allocator"):
        allotment.Allocator("sim:1GiB").free(buffer)
    any_allocator.free(buffer)
    assert buffer.closed


def test_a_slice_is_a_part_of_the_memory_and_keeps_it(allocator):
    buffer = allocator.empty(1000)
    memoryview(buffer)[:] = bytes(range(250)) * 4
    part = buffer[100:-800][50:60]
    assert (part.address, len(part), part.block) == (buffer.address + 150, 10, buffer.address)
    assert bytes(part) == bytes(range(150, 160))
    assert (len(buffer[900:2000]), len(buffer[5:2])) == (100, 0)
    del buffer
    gc.collect()
    assert live(allocator) == 1
    assert bytes(part) == bytes(range(150, 160))
    part.close()
    assert live(allocator) == 0


def test_what_is_not_a_plain_slice_is_refused(allocator):
    buffer = allocator.empty(1000)
    with pytest.raises(TypeError, match="memoryview"):
        buffer[0]
    with pytest.raises(ValueError, match="step of 2"):
        buffer[::2]
    with pytest.raises(AddressError, match="is a slice; free the buffer"):
        allocator.free(buffer[1:])


def test_operations_on_a_block_take_a_buffer_or_a_slice_of_it():
    allocator = allotment.Allocator(allotment.SimulatedDevice("1GiB"))
    buffer, stream = allocator.empty(1000), allotment.Stream(allocator)
    part = buffer[10:]
    assert (
        allocator.inspection.base_allocation(part)
        == allocator.inspection.base_allocation(buffer)
        == allocator.inspection.base_allocation(buffer.address)
    )
    assert allocator.share(part) == allocator.share(buffer) == allocator.share(buffer.address)
    allocator.device.launch(stream.handle)
    allocator.record_stream(part, stream)
    part.record_stream(stream)
    allocator.copy(part, buffer, 100)
    del part
    buffer.close()
    assert allocator.stats()["active.all.current"] == 1
    allocator.device.finish()
    allocator.inspection.check_invariants()


# Allocators.


def test_a_closed_allocator_serves_no_request(any_allocator):
    with any_allocator as entered:
        assert entered is any_allocator
        entered.free(entered.malloc(512))
    assert any_allocator.closed
    any_allocator.close()
    with pytest.raises(RequestError, match="is closed"):
        any_allocator.malloc(512)
    with pytest.raises(RequestError, match="is closed"):
        any_allocator.empty(512)
    with pytest.raises(RequestError, match="is closed"), any_allocator:
        pass
    assert any_allocator.stats()


@pytest.mark.filterwarnings("error")
def test_a_closed_allocator_has_given_its_memory_back():
    device = allotment.SimulatedDevice("1GiB")
    with allotment.Allocator(device) as allocator:
        pool = allocator.pool()
        with pool:
            allocator.free(allocator.malloc(3 << 20))
        allocator.free(allocator.malloc(512))
        assert device.used > 0
    assert device.used == 0
    pool.close()
    allocator.inspection.check_invariants()


def test_blocks_in_use_outlive_their_allocator_and_are_reported():
    device = allotment.SimulatedDevice("1GiB")
    allocator = allotment.Allocator(device)
    address, buffer = allocator.malloc(3 << 20), allocator.empty(512)
    with pytest.warns(ResourceWarning, match=r"ends with 3.00 MiB in use; free all blocks first"):
        allocator.close()
    assert device.used > 0
    allocator.inspection.check_invariants()
    buffer.close()
    allocator.free(address)
    assert device.used == 0
    with pytest.raises(AddressError):
        allocator.free(address)
    allocator.inspection.check_invariants()


def test_an_allocator_that_is_deleted_with_live_blocks_reports_them(any_allocator):
    any_allocator.malloc(512)
    with pytest.warns(ResourceWarning, match="512 bytes in use"):
        any_allocator.close()
    kept = allotment.Allocator("sim:1GiB")
    kept.malloc(512)
    with pytest.warns(ResourceWarning, match="ends with 512 bytes in use"):
        del kept
        gc.collect()


def test_an_allocator_that_is_deleted_with_nothing_in_use_is_silent():
    allocator = allotment.Allocator("sim:1003MiB")  # used by no other test: its objects may end here too
    allocator.free(allocator.malloc(512))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        del allocator
        gc.collect()
    assert not [warning for warning in caught if "sim:1003MiB" in str(warning.message)]


def test_an_allocator_that_c_code_may_call_cannot_be_closed():
    from allotment.entry import entry_points_address

    allocator = allotment.Allocator("sim:1GiB")
    entry_points_address(allocator)
    with pytest.raises(RequestError, match="C code has its entry points"):
        allocator.close()
    allocator.free(allocator.malloc(512))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("moment", ["before", "after_in_parent", "after_in_child"])
def test_an_allocator_whose_last_reference_goes_while_a_fork_holds_its_lock_stops_nobody(moment):
    program = f"""
        import os
        kept = []
        os.register_at_fork({moment}=kept.clear)  # registered first, so it runs while the package's hooks hold the lock
        import allotment
        kept.append(allotment.Allocator("host"))
        kept[0].free(kept[0].malloc(1000))
        child = os.fork()
        if child == 0:
            os._exit(0)
        print(os.waitpid(child, 0)[1])
    """
    assert output_of(program, seconds=120) == "0\n"


def test_the_shared_allocator_of_a_device_is_made_anew_when_it_was_closed():
    shared = allotment.current("sim:1GiB#4321")
    shared.close()
    assert allotment.current("sim:1GiB#4321") is not shared
    allotment.current("sim:1GiB#4321").free(allotment.current("sim:1GiB#4321").malloc(512))


def test_a_stream_is_current_in_its_with():
    allocator = allotment.Allocator("sim:1GiB")
    with allotment.Stream(allocator) as stream:
        allocator.free(allocator.malloc(512, stream))
