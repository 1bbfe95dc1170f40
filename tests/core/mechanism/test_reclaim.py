"""Which memory is released to the device, when, and in which order."""

import pytest

from allotment.errors import DeviceError, OutOfMemoryError
from helpers.engine import BUFFER, MIB, SEGMENT, actions, check, empties, on_device, reserved


def given_back(alloc):
    return [e["addr"] for e in alloc.snapshot()["device_traces"][0] if e["action"] == "segment_free"]


def cached(alloc, *sizes, stream=0):
    """Free segments of these sizes, the oldest first."""
    blocks = [alloc.malloc(size, stream) for size in sizes]
    for address in blocks:
        alloc.free(address)
    return blocks


# --- everything ---


def test_everything_is_released_large_before_small_by_stream_size_and_address():
    alloc = on_device()
    alloc.record_history()
    small = cached(alloc, MIB)
    late = cached(alloc, 12 * MIB, stream=9)
    thirty, twelve, other_twelve = cached(alloc, 30 * MIB, 12 * MIB, 12 * MIB)
    alloc.empty_cache()
    assert given_back(alloc) == [twelve, other_twelve, thirty, *late, *small]
    empties(alloc)


def test_segments_in_part_in_use_stay():
    alloc = on_device()
    first, second = alloc.malloc(MIB), alloc.malloc(512)
    alloc.free(first)
    alloc.empty_cache()
    assert reserved(alloc) == BUFFER
    alloc.free(second)
    empties(alloc)


def test_a_refused_release_keeps_the_segment_and_can_be_repeated():
    alloc = on_device()
    cached(alloc, 12 * MIB, 14 * MIB, 16 * MIB)
    alloc.device.refuse("segment_free", after=1, out_of_memory=False)
    with pytest.raises(DeviceError, match="segment_free"):
        alloc.empty_cache()
    assert reserved(alloc) == alloc.device.used == 30 * MIB
    check(alloc)
    empties(alloc)


# --- garbage collection ---

GC = "garbage_collection_threshold:0.5"


def test_garbage_is_collected_above_the_threshold_and_oldest_first():
    alloc = on_device(settings=GC, limit=100 * MIB)
    old = cached(alloc, 20 * MIB)[0]
    for _ in range(3):  # each search of the pool advances the clock
        cached(alloc, 12 * MIB, stream=1)
    young = cached(alloc, 22 * MIB)[0]
    assert reserved(alloc) == 54 * MIB
    alloc.record_history()
    alloc.malloc(30 * MIB)
    assert given_back(alloc) == [old]
    assert alloc.malloc(22 * MIB) == young
    stats = alloc.stats()
    assert (stats["num_sync_all_streams"], stats["num_alloc_retries"]) == (0, 0)
    check(alloc)


def test_a_pass_gives_up_everything_of_at_least_average_age():
    alloc = on_device(settings=GC, limit=100 * MIB)
    same_age = [alloc.malloc(18 * MIB) for _ in range(3)]
    for address in same_age:
        alloc.free(address)
    alloc.record_history()
    alloc.malloc(20 * MIB)  # 4 MiB above the threshold, yet all of them are released
    assert given_back(alloc) == same_age
    check(alloc)


def test_reserved_memory_at_the_threshold_is_no_garbage():
    alloc = on_device(settings=GC, limit=100 * MIB)
    cached(alloc, 50 * MIB)
    alloc.record_history()
    alloc.malloc(30 * MIB, stream=1)
    assert given_back(alloc) == []
    check(alloc)


@pytest.mark.parametrize(("settings", "limit"), [(GC, None), ("", 100 * MIB)])
def test_without_a_limit_and_a_threshold_nothing_is_collected(settings, limit):
    alloc = on_device(settings=settings, limit=limit)
    alloc.record_history()
    cached(alloc, 60 * MIB)
    alloc.malloc(30 * MIB, stream=1)
    assert given_back(alloc) == []


def test_small_memory_split_memory_and_private_memory_are_no_garbage():
    alloc = on_device(settings=GC, limit=100 * MIB)
    alloc.record_history()
    pool = alloc.pool()
    with pool:
        cached(alloc, 30 * MIB)
    cached(alloc, MIB)
    part, _rest = alloc.malloc(12 * MIB), alloc.malloc(3 * MIB)
    alloc.free(part)
    alloc.free(alloc.malloc(3 * MIB))
    alloc.malloc(12 * MIB, stream=1)
    alloc.malloc(12 * MIB, stream=1)
    assert given_back(alloc) == [part]
    pool.close()
    check(alloc)


def test_a_refusal_while_garbage_is_collected_is_the_requests_failure():
    alloc = on_device(settings=GC, limit=100 * MIB)
    cached(alloc, 60 * MIB)
    alloc.device.refuse("segment_free", out_of_memory=False)
    with pytest.raises(DeviceError, match="segment_free"):
        alloc.malloc(30 * MIB, stream=1)
    check(alloc)
    alloc.malloc(30 * MIB, stream=1)
    assert reserved(alloc) == 30 * MIB


# --- oversize blocks ---

SPLIT = "max_split_size_mb:40"


def test_a_segment_of_just_the_oversize_size_is_counted_until_it_goes():
    alloc = on_device(settings=SPLIT)
    cached(alloc, 40 * MIB, 38 * MIB)
    assert alloc.stats()["oversize_segments.current"] == 1
    alloc.empty_cache()
    assert alloc.stats()["oversize_segments.current"] == 0


def test_an_oversize_block_serves_no_small_request():
    alloc = on_device(settings=SPLIT)
    cached(alloc, 40 * MIB)
    address = alloc.malloc(30 * MIB)
    assert reserved(alloc) == 70 * MIB
    assert alloc.malloc(40 * MIB) != address
    assert alloc.stats()["oversize_allocations.current"] == 1
    assert alloc.stats()["oversize_segments.current"] == 1
    check(alloc)


@pytest.mark.parametrize(("excess", "reused"), [(SEGMENT - 2 * MIB, True), (SEGMENT, False)])
def test_an_oversize_block_may_exceed_its_request_by_less_than_a_segment(excess, reused):
    alloc = on_device(settings=SPLIT)
    (block,) = cached(alloc, 60 * MIB + excess)
    assert (alloc.malloc(60 * MIB) == block) == reused
    check(alloc)


def test_the_allowance_is_a_setting():
    alloc = on_device(settings=SPLIT + ",max_non_split_rounding_mb:64")
    (block,) = cached(alloc, 120 * MIB)
    assert alloc.malloc(60 * MIB) == block
    assert alloc.stats()["allocated_bytes.all.current"] == 120 * MIB, "oversize blocks are not split"


def test_only_the_first_oversize_block_that_is_large_enough_is_released():
    alloc = on_device(140 * MIB, SPLIT)
    alloc.record_history()
    sixty, _sixty_four = cached(alloc, 60 * MIB, 64 * MIB)
    alloc.malloc(40 * MIB)  # either would waste too much
    assert given_back(alloc) == [sixty]
    assert alloc.stats()["num_alloc_retries"] == 0, "this way is no retry"
    check(alloc)


def test_oversize_blocks_of_other_streams_stay_until_everything_goes():
    alloc = on_device(100 * MIB, SPLIT)
    cached(alloc, 60 * MIB, stream=1)
    alloc.malloc(44 * MIB)
    assert alloc.stats()["num_alloc_retries"] == 1
    check(alloc)


def test_several_oversize_blocks_go_from_the_largest_down():
    alloc = on_device(200 * MIB, SPLIT)
    alloc.record_history()
    smallest, middle, largest = cached(alloc, 40 * MIB, 50 * MIB, 60 * MIB)
    alloc.malloc(100 * MIB)
    assert given_back(alloc) == [largest, middle]
    assert alloc.malloc(40 * MIB) == smallest
    check(alloc)


def test_oversize_blocks_that_are_not_enough_are_gone_and_the_rest_follows():
    alloc = on_device(200 * MIB, SPLIT)
    alloc.record_history()
    other = cached(alloc, 12 * MIB, stream=1)
    oversize = cached(alloc, 40 * MIB, 44 * MIB)
    alloc.malloc(150 * MIB)
    assert given_back(alloc) == [*reversed(oversize), *other]
    assert alloc.stats()["num_alloc_retries"] == 1
    check(alloc)


def test_a_limit_lowered_below_split_blocks_gives_back_none_that_is_in_use():
    alloc = on_device(200 * MIB)
    address = alloc.malloc(100 * MIB)
    alloc.free(address)
    part = alloc.malloc(30 * MIB)
    alloc.settings = SPLIT
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(120 * MIB)
    check(alloc)
    assert alloc.inspection.base_allocation(part) == (address, 100 * MIB)
    alloc.free(part)
    empties(alloc)


# --- while requests are routed, by the rules that treat routing as a capture ---


def test_while_routed_nothing_is_released_for_a_request():
    alloc = on_device(60 * MIB, "compat:2.11")
    cached(alloc, 40 * MIB)
    with alloc.pool(), pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    assert alloc.stats()["num_alloc_retries"] == 0
    assert reserved(alloc) == 40 * MIB
    alloc.malloc(30 * MIB)
    check(alloc)


def test_while_routed_the_default_pools_keep_their_memory_and_freeable_ones_do_not():
    alloc = on_device(settings="compat:2.11")
    cached(alloc, 30 * MIB)
    gone, here = alloc.pool(), alloc.pool()
    with gone:
        address = alloc.malloc(12 * MIB)
    gone.close()
    alloc.free(address)
    with here:
        alloc.empty_cache()
        assert reserved(alloc) == 30 * MIB
    assert alloc.stats()["num_sync_all_streams"] == 1, "at close; not while routed"
    check(alloc)


def test_the_order_of_entries_in_one_request():
    alloc = on_device(64 * MIB, SPLIT)
    alloc.record_history()
    alloc.device.launch(2)
    for address in [alloc.malloc(2 * MIB, 1) for _ in range(2)]:
        alloc.record_stream(address, 2)
        alloc.free(address)
    alloc.free(alloc.malloc(40 * MIB, 1))
    alloc.record_history(clear_history=True)
    alloc.malloc(60 * MIB, 1)
    oversize, waited = ["segment_free"], ["free_completed"] * 2 + ["segment_free"]
    assert actions(alloc) == [*oversize, *waited, "segment_alloc", "alloc"]
    check(alloc)
