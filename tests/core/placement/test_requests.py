"""What a request gets: rounding, size classes, segments, splitting, limits and out of memory."""

import random
from bisect import insort
from itertools import pairwise

import pytest

from allotment.errors import AddressError, OutOfMemoryError
from helpers.engine import BUFFER, GIB, KIB, MIB, SEGMENT, check, empties, on_device, reserved, segment_of, states


def block_size(alloc, address):
    return next(b["size"] for b in segment_of(alloc, address)["blocks"] if b["address"] == address)


# --- rounding ---


@pytest.mark.parametrize(
    ("size", "divisions", "rounded"),
    [
        (1, 4, 512),
        (512, 4, 512),
        (513, 1, 1024),
        (1200, 4, 1536),
        (2048, 4, 2048),
        (2049, 4, 2560),
        (5_000_000, 8, 5_242_880),
        (5_000_000, 1, 5_000_192),
        (8 * MIB, 4, 8 * MIB),
        (8 * MIB + 1, 4, 10 * MIB),
        (64 * GIB + 1, 4, 80 * GIB),
    ],
)
def test_requests_round_to_steps_between_powers_of_two(size, divisions, rounded):
    # In a plain large block a remainder of up to 1 MiB stays with the request; expandable memory is split exactly.
    alloc = on_device(160 * GIB, f"roundup_power2_divisions:{divisions},expandable_segments:True")
    assert block_size(alloc, alloc.malloc(size)) == rounded
    check(alloc)


@pytest.mark.parametrize("size", [1, 511, 512, 513, 1023, 1024, 1025, MIB - 1, MIB])
def test_small_requests_round_up_to_512(size):
    alloc = on_device()
    address = alloc.malloc(size)
    assert block_size(alloc, address) == -(-size // 512) * 512
    assert segment_of(alloc, address)["segment_type"] == "small"
    assert alloc.stats()["requested_bytes.all.current"] == size
    check(alloc)


# --- segments ---


@pytest.mark.parametrize(
    ("size", "segment"),
    [
        (1, BUFFER),
        (MIB, BUFFER),
        (MIB + 1, SEGMENT),
        (10 * MIB - 512, SEGMENT),
        (10 * MIB, 10 * MIB),
        (10 * MIB + 1, 12 * MIB),
        (10 * MIB + 512, 12 * MIB),
        (12 * MIB, 12 * MIB),
        (12 * MIB + 1, 14 * MIB),
    ],
)
def test_segments_have_the_size_of_their_class(size, segment):
    alloc = on_device()
    address = alloc.malloc(size)
    assert segment_of(alloc, address)["total_size"] == segment
    assert alloc.inspection.base_allocation(address) == (address, segment)
    check(alloc)


def test_the_size_of_medium_segments_is_a_setting():
    alloc = on_device(settings="large_segment_size_mb:11")
    alloc.malloc(10 * MIB - 512)
    assert reserved(alloc) == 11 * MIB


# --- splitting ---


@pytest.mark.parametrize(("rest", "split"), [(MIB, False), (MIB + 512, True)])
def test_a_large_block_is_split_if_more_than_a_mebibyte_is_left(rest, split):
    alloc = on_device()
    alloc.free(alloc.malloc(12 * MIB))
    address = alloc.malloc(12 * MIB - rest)
    assert block_size(alloc, address) == (12 * MIB - rest if split else 12 * MIB)
    assert alloc.stats()["inactive_split.all.current"] == split
    check(alloc)


@pytest.mark.parametrize(("rest", "split"), [(0, False), (512, True)])
def test_a_small_block_is_split_if_anything_is_left(rest, split):
    alloc = on_device()
    alloc.malloc(BUFFER - MIB)
    address = alloc.malloc(MIB - rest)
    assert block_size(alloc, address) == MIB - rest
    assert alloc.stats()["inactive_split.all.current"] == split
    check(alloc)


def test_the_smallest_block_that_fits_serves_and_of_equal_ones_the_lowest():
    alloc = on_device()
    blocks = [alloc.malloc(size) for size in (30 * MIB, 14 * MIB, 14 * MIB, 40 * MIB)]
    for address in blocks:
        alloc.free(address)
    assert alloc.malloc(13 * MIB) == min(blocks[1:3])
    assert alloc.malloc(13 * MIB) == max(blocks[1:3])
    assert alloc.malloc(13 * MIB) == blocks[0]
    check(alloc)


@pytest.mark.parametrize("size", [KIB, 3 * MIB])
@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_of_equal_blocks_the_lowest_serves_whichever_was_freed_last(order, size):
    alloc = on_device()
    blocks = [alloc.malloc(size) for _ in range(4)]
    for place in order:
        alloc.free(blocks[place])
    assert [alloc.malloc(size), alloc.malloc(size)] == [blocks[0], blocks[2]]
    check(alloc)


@pytest.mark.parametrize("order", [(0, 2), (2, 0)])
def test_the_smaller_block_serves_whichever_was_freed_last(order):
    alloc = on_device()
    blocks = [alloc.malloc(size) for size in (8 * KIB, KIB, 4 * KIB, KIB)]
    for place in order:
        alloc.free(blocks[place])
    assert [alloc.malloc(4 * KIB), alloc.malloc(4 * KIB)] == [blocks[2], blocks[0]]
    check(alloc)


def test_every_live_address_is_known_until_it_is_freed():
    alloc = on_device()
    blocks = [alloc.malloc(KIB) for _ in range(50)]
    for freed in [blocks[-1], blocks[0], *blocks[10:20], *reversed(blocks[20:30])]:
        alloc.free(freed)
        with pytest.raises(AddressError):
            alloc.free(freed)
        check(alloc)


def test_freed_neighbours_merge_in_every_order():
    for order in ((0, 1, 2), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1), (2, 1, 0)):
        alloc = on_device()
        blocks = [alloc.malloc(512 * 1024) for _ in range(3)]
        for place in order:
            alloc.free(blocks[place])
            check(alloc)
        assert states(alloc) == [[(BUFFER, "inactive")]]


def test_a_block_is_never_offered_to_another_stream():
    alloc = on_device()
    alloc.free(alloc.malloc(512, stream=1))
    alloc.malloc(512, stream=2)
    assert [s["stream"] for s in alloc.history.segments()] == [1, 2]
    check(alloc)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "max_split_size_mb:20"])
def test_blocks_in_use_never_overlap(settings):
    alloc = on_device(4 * GIB, settings)
    chance = random.Random(2011)
    live = []  # (address, size), sorted
    for _ in range(3000):
        what = chance.random()
        if what < 0.53:
            size = chance.randrange(2 * MIB, 20 * MIB)
            insort(live, (alloc.malloc(size), size))
        elif what < 0.99 and live:
            alloc.free(live.pop(chance.randrange(len(live)))[0])
        elif what >= 0.99:
            alloc.empty_cache()
            check(alloc)
            assert all(address + size <= later for (address, size), (later, _) in pairwise(live))
    assert len(live) > 50
    for address, _ in live:
        alloc.free(address)
    empties(alloc)


# --- counters ---


def test_a_free_restores_what_a_request_added():
    alloc = on_device()
    before = alloc.stats()["allocated_bytes.all.current"]
    address = alloc.malloc(1)
    assert alloc.stats()["allocated_bytes.all.current"] > before
    alloc.free(address)
    assert alloc.stats()["allocated_bytes.all.current"] == before


def test_emptying_the_cache_never_changes_a_peak():
    alloc = on_device()
    blocks = [alloc.malloc(size) for size in (MIB, 3 * MIB, 30 * MIB)]
    alloc.free(blocks[1])
    peaks = {key: value for key, value in alloc.stats().items() if key.endswith(".peak")}
    alloc.empty_cache()
    stats = alloc.stats()
    assert {key: stats[key] for key in peaks} == peaks
    assert stats["reserved_bytes.all.current"] == BUFFER + 30 * MIB
    alloc.reset_peak_stats()
    assert alloc.stats()["reserved_bytes.all.peak"] == BUFFER + 30 * MIB
    check(alloc)


def test_a_fresh_allocator_has_every_counter_at_zero():
    assert len(on_device(settings="compat:2.11").stats()) == 122
    stats = on_device().stats()
    assert len(stats) == 123, "and 12 for each private pool"
    assert [key for key, value in stats.items() if value != 0] == ["max_split_size"]
    assert list(stats) == sorted(stats)


def test_size_zero_requests_nothing():
    alloc = on_device()
    assert alloc.malloc(0) == 0
    alloc.free(0)
    assert alloc.device.used == 0
    assert alloc.stats() == on_device().stats()


def test_past_the_cache_no_counter_moves():
    alloc = on_device()
    alloc.pools.caching = False
    address = alloc.malloc(1000)
    assert alloc.device.used == 1000
    assert alloc.stats() == on_device().stats()
    alloc.pools.caching = True
    other = alloc.malloc(1000)
    assert alloc.stats()["requested_bytes.all.allocated"] == 1000
    # Each block returns to where it came from, whatever the switch says then.
    alloc.pools.caching = False
    alloc.free(other)
    assert alloc.device.used == 1000 + BUFFER
    alloc.free(address)
    assert alloc.device.used == BUFFER
    alloc.pools.caching = True
    empties(alloc)


def test_past_the_cache_a_refusal_is_out_of_memory_and_counts_nothing():
    alloc = on_device(64 * MIB)
    alloc.pools.caching = False
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(65 * MIB)
    assert caught.value.facts.requested == 65 * MIB
    assert alloc.stats()["num_ooms"] == 0
    check(alloc)


# --- out of memory ---


def test_out_of_memory_reports_what_was_tried_and_what_exists():
    alloc = on_device(100 * MIB)
    alloc.malloc(30 * MIB)
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(80 * MIB - 1, stream=3)
    facts = caught.value.facts
    assert (facts.requested, facts.rounded, facts.segment_size) == (80 * MIB - 1, 80 * MIB, 80 * MIB)
    assert (facts.device_free, facts.device_total, facts.limit) == (70 * MIB, 100 * MIB, None)
    assert (facts.allocated, facts.reserved, facts.stream) == (30 * MIB, 30 * MIB, 3)
    assert isinstance(caught.value, MemoryError)
    assert alloc.stats()["num_ooms"] == 1
    check(alloc)


@pytest.mark.parametrize("settings", ["", "max_split_size_mb:1024", "expandable_segments:True"])
def test_more_than_the_device_has_is_out_of_memory_and_leaves_it_usable(settings):
    alloc = on_device(settings=settings)
    for size in (1 << 40, 800_000_000 * GIB):
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(size)
        check(alloc)
    alloc.free(alloc.malloc(GIB // 2))
    empties(alloc)


def test_2_to_the_60_bytes_are_refused_unseen():
    alloc = on_device()
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(1 << 60)
    assert caught.value.facts.too_large
    assert "more than any device has" in str(caught.value)
    assert alloc.stats()["num_ooms"] == 0
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc((1 << 60) - 1)
    assert not caught.value.facts.too_large


def test_what_is_cached_is_released_before_a_request_fails():
    alloc = on_device(100 * MIB)
    alloc.free(alloc.malloc(60 * MIB))
    alloc.free(alloc.malloc(30 * MIB, stream=1))
    alloc.malloc(90 * MIB)
    stats = alloc.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_sync_all_streams"]) == (1, 0, 1)
    assert stats["segment.all.current"] == 1
    check(alloc)


def test_half_twice_fails_until_the_first_half_is_freed():
    alloc = on_device(100 * MIB)
    half = alloc.malloc(50 * MIB)
    alloc.malloc(2 * MIB)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(52 * MIB)
    alloc.free(half)
    alloc.malloc(50 * MIB)
    check(alloc)


def test_a_refused_request_counts_its_last_try():
    alloc = on_device(10 * MIB)
    for tries in (1, 2):
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(20 * MIB)
        assert alloc.stats()["num_alloc_retries"] == tries
    alloc.inspection.reset_accumulated_stats()
    stats = alloc.stats()
    assert (stats["num_alloc_retries"], stats["num_ooms"], stats["num_sync_all_streams"]) == (0, 0, 0)


# --- limits ---


def test_reserved_memory_may_reach_the_limit_and_not_pass_it():
    alloc = on_device(limit=40 * MIB)
    alloc.malloc(20 * MIB)
    alloc.malloc(20 * MIB)
    calls = alloc.device.calls["segment_allocate"]
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(512)
    assert caught.value.facts.limit == 40 * MIB
    assert alloc.device.calls["segment_allocate"] == calls, "the limit is no question to the device"
    check(alloc)


def test_a_limit_of_zero_is_a_limit():
    alloc = on_device(limit=0)
    with pytest.raises(OutOfMemoryError) as caught:
        alloc.malloc(1)
    assert caught.value.facts.limit == 0
    assert "raise the limit" in str(caught.value)


def test_a_fraction_of_the_device_can_be_reserved():
    alloc = on_device(200 * MIB)
    alloc.limits.memory_fraction = 0.5
    alloc.free(alloc.malloc(int(0.499 * 200 * MIB)))
    alloc.empty_cache()
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(100 * MIB + 1)
    check(alloc)


@pytest.mark.parametrize("fraction", [0.0, 0.1, 0.25, 1 / 3, 0.9999, 1.0])
def test_a_fraction_reads_back(fraction):
    alloc = on_device()
    alloc.limits.memory_fraction = fraction
    assert alloc.limits.memory_fraction == pytest.approx(fraction, abs=1e-8)
    assert (alloc.limit is None) == (fraction == 1.0)


def test_a_fraction_can_be_in_the_settings_and_acts_from_the_start():
    alloc = on_device(200 * MIB, "per_process_memory_fraction:0.25")
    assert alloc.limit == 50 * MIB
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(51 * MIB)


def test_a_limit_below_what_is_reserved_only_stops_growth():
    alloc = on_device()
    address = alloc.malloc(30 * MIB)
    alloc.limit = "10MiB"
    alloc.free(address)
    assert alloc.malloc(30 * MIB) == address
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    check(alloc)


# --- what is cached ---


def test_the_largest_free_block_is_found_in_every_pool_and_stream():
    alloc = on_device(100 * MIB)
    alloc.free(alloc.malloc(30 * MIB, stream=2))
    with alloc.pool() as pool:
        address = alloc.malloc(40 * MIB)
        alloc.free(address)
    assert alloc.inspection.cache_info(1) == 40 * MIB
    assert alloc.inspection.cache_info(50 * MIB) == 50 * MIB
    assert alloc.inspection.cache_info() == 40 * MIB
    pool.close()
    assert alloc.inspection.cache_info() == 70 * MIB, "nothing asked for starts from what the device has free"
    check(alloc)
