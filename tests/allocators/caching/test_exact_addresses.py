"""Operations of newer versions: requests for one address, notes on blocks, reserves of segments, rejections."""

import pytest

from allotment import Stream
from allotment.errors import AddressError, OutOfMemoryError, RequestError
from helpers.engine import MIB, check, empties, on_device, reserved


def test_free_memory_can_be_allocated_at_its_address():
    alloc = on_device()
    alloc.record_history()
    first = alloc.malloc(MIB)
    alloc.free(first)
    alloc.record_history(clear_history=True)
    assert alloc.pools.malloc_at(512, first + 4096) == first + 4096
    trace = alloc.snapshot()["device_traces"][0]
    check(alloc)
    assert [entry["action"] for entry in trace] == ["alloc", "alloc", "free_requested", "free_completed"]
    assert {entry["internal_metadata"] for entry in trace} == {"mallocWithAddress"}
    assert alloc.malloc(4096) == first, "what is in front of it is free again"
    alloc.free(first)
    alloc.free(first + 4096)
    empties(alloc)


def test_an_address_that_is_not_free_or_not_even_one_is_refused_and_nothing_changes():
    alloc = on_device()
    address = alloc.malloc(MIB)
    before = alloc.stats()
    for wrong, why in ((address, "no free block"), (address + 1, "multiples of 512"), (1 << 50, "no free block")):
        with pytest.raises(AddressError, match=why):
            alloc.pools.malloc_at(512, wrong)
    assert alloc.stats() == before
    assert alloc.pools.malloc_at(0, address) == 0
    check(alloc)


def test_a_note_for_a_block_is_an_entry_of_the_history():
    alloc = on_device()
    alloc.record_history()
    address = alloc.malloc(1000)
    alloc.history.annotate(address, "weights")
    entry = alloc.snapshot()["device_traces"][0][-1]
    shown = (entry["action"], entry["addr"], entry["size"], entry["user_metadata"])
    assert shown == ("annotate", address, 1000, "weights")
    with pytest.raises(AddressError):
        alloc.history.annotate(address + 512, "nothing")
    with pytest.raises(RequestError, match="set compat:newest"):
        on_device(settings="compat:2.13").history.annotate(address, "too early")


def test_a_request_larger_than_the_reserve_of_its_stream_fails_and_says_so():
    alloc = on_device(settings="expandable_segments:True,expandable_segments_reserve_by_class:[small:0.0625G]")
    alloc.pools.set_reserve_class(7, "small")
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(100 * MIB, 7)
    assert (caught.value.facts.range_bytes, caught.value.facts.range_class) == (64 * MIB, "small")
    assert alloc.inspection.expandable_ranges() == (0, 0)
    alloc.malloc(50 * MIB, 7)
    alloc.malloc(100 * MIB, 0)
    assert alloc.inspection.expandable_ranges()[1] == 2
    check(alloc)


def test_a_rejected_request_releases_nothing_and_calls_no_observer():
    alloc = on_device(settings="throw_on_cudamalloc_oom:True,per_process_memory_fraction:0.5")
    alloc.limits.memory_fraction = 1.0
    reported = []
    alloc.limits.attach_out_of_memory_observer(reported.append)
    alloc.free(alloc.malloc(300 * MIB))
    with pytest.raises(OutOfMemoryError, match="per_process_memory_fraction"):
        alloc.malloc(400 * MIB)
    stats = alloc.stats()
    assert (stats["num_oom_rejections"], stats["num_ooms"], stats["num_alloc_retries"], reported) == (1, 0, 0, [])
    assert reserved(alloc) == 300 * MIB
    check(alloc)


# --- the current stream ---


def captured(alloc):
    """Put a stream into a capture whose requests pool (9, 0) serves."""
    stream = alloc.device.create_stream()
    alloc.pools.begin_allocate_to_pool((9, 0), capture=alloc.device.begin_capture(stream))
    return Stream.external(alloc.device, stream)


def test_the_current_stream_decides_whether_a_free_is_inside_a_capture():
    alloc = on_device()
    inside, outside = alloc.malloc(MIB), alloc.malloc(MIB)
    for address in (inside, outside):
        alloc.device.launch(7)
        alloc.record_stream(address, 7)
    with captured(alloc):
        alloc.free(inside)
        assert alloc.inspection.pending_events() == []
    alloc.free(outside)
    assert [block for _, _, block in alloc.inspection.pending_events()] == [outside]
    alloc.malloc(512)
    assert {block for _, _, block in alloc.inspection.pending_events()} == {inside, outside}
    check(alloc)


def test_a_block_that_a_captured_stream_uses_waits_for_the_end_of_the_capture_wherever_it_is_freed():
    alloc = on_device()
    address = alloc.malloc(MIB)
    stream = captured(alloc)
    alloc.record_stream(address, stream.handle)
    alloc.free(address)
    alloc.malloc(512)
    assert alloc.device.calls["event_record"] == 0
    assert alloc.stats()["active.all.current"] == 2
    check(alloc)
    alloc.device.end_capture(stream.handle)
    alloc.pools.end_allocate_to_pool((9, 0))
    alloc.malloc(512)
    alloc.device.finish()
    alloc.malloc(512)
    assert alloc.malloc(MIB) == address
    check(alloc)


def test_streams_are_entered_and_left_by_each_thread():
    alloc = on_device()
    first, second = Stream(alloc), Stream(alloc)
    with first, second:
        pass
    with pytest.raises(Exception, match="is not current in this thread"):
        first.__exit__(None, None, None)


def test_memory_of_another_placement_cannot_be_allocated_at_its_address():
    alloc = on_device(settings="placement:dense")
    address = alloc.malloc(MIB)
    alloc.free(address)
    for size in (512, MIB, 30 * MIB):
        with pytest.raises(AddressError, match="no free block"):
            alloc.pools.malloc_at(size, address)
        alloc.inspection.check_invariants()
    alloc.empty_cache()
    assert reserved(alloc) == 0
