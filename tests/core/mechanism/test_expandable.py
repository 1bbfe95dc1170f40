"""Segments that grow in place: what is mapped, what is released, and the state after a refusal of the device."""

import pytest

from allotment.errors import DeviceError, OutOfMemoryError, UnsupportedError
from helpers.engine import BUFFER, GIB, MIB, SEGMENT, check, empties, on_device, reserved, segment_of, states

EXPANDABLE = "expandable_segments:True"
PAGE = SEGMENT


def expandable(capacity=GIB, more="", **options):
    return on_device(capacity, EXPANDABLE + more, **options)


def maps(alloc):
    return [(e["action"], e["addr"], e["size"]) for e in alloc.snapshot()["device_traces"][0] if "map" in e["action"]]


def test_memory_follows_the_request_page_by_page():
    alloc = expandable()
    alloc.record_history()
    first = alloc.malloc(25 * MIB)
    assert states(alloc) == [[(25 * MIB, "active_allocated"), (15 * MIB, "inactive")]]
    assert maps(alloc) == [("segment_map", first, 40 * MIB)]
    check(alloc)
    assert alloc.malloc(10 * MIB) == first + 25 * MIB, "the free tail serves, nothing is mapped"
    assert alloc.malloc(30 * MIB) == first + 35 * MIB, "what was free at the edge counts"
    assert maps(alloc)[1:] == [("segment_map", first + 40 * MIB, 40 * MIB)]
    assert reserved(alloc) == 80 * MIB
    check(alloc)
    for offset in (0, 25 * MIB, 35 * MIB):
        alloc.free(first + offset)
    alloc.empty_cache()
    assert maps(alloc)[2:] == [("segment_unmap", first, 80 * MIB)]
    calls = alloc.device.calls
    assert (calls["chunk_create"], calls["chunk_release"]) == (4, 4)
    assert (calls["range_reserve"], calls["range_release"]) == (1, 1)
    assert alloc.stats()["segment.all.peak"] == 0, "expandable memory is no segment to the counters"
    assert (alloc.stats()["num_device_alloc"], alloc.stats()["num_device_free"]) == (2, 1)
    check(alloc)


def test_small_requests_have_a_range_with_small_pages():
    alloc = expandable()
    small, large = alloc.malloc(512), alloc.malloc(3 * MIB)
    assert segment_of(alloc, small)["total_size"] == BUFFER
    assert segment_of(alloc, large)["total_size"] == PAGE
    assert alloc.device.calls["range_reserve"] == 2
    check(alloc)


def test_only_whole_free_pages_are_released():
    alloc = expandable()
    blocks = [alloc.malloc(15 * MIB) for _ in range(4)]  # three pages
    alloc.free(blocks[1])
    alloc.free(blocks[2])
    alloc.empty_cache()
    base = blocks[0]
    assert [(s["address"] - base, s["total_size"]) for s in alloc.history.segments()] == [(0, PAGE), (2 * PAGE, PAGE)]
    assert reserved(alloc) == alloc.device.used == 2 * PAGE
    check(alloc)
    assert alloc.malloc(30 * MIB) == blocks[1], "the hole is filled before anything else grows"
    assert len(alloc.history.segments()) == 1
    check(alloc)


def test_the_lowest_place_where_a_request_fits_wins():
    alloc = expandable()
    blocks = [alloc.malloc(PAGE) for _ in range(6)]
    for place in (1, 3, 4):
        alloc.free(blocks[place])
    alloc.empty_cache()
    assert alloc.malloc(30 * MIB) == blocks[3]
    assert alloc.malloc(15 * MIB) == blocks[1]
    check(alloc)


def test_a_closed_fit_is_preferred_to_the_growing_edge():
    alloc = expandable()
    closed = alloc.malloc(14 * MIB)
    alloc.malloc(14 * MIB)
    alloc.free(closed)
    # The 12 MiB at the end are the tighter fit, but they have room to grow behind them.
    assert alloc.malloc(11 * MIB) == closed
    check(alloc)


# --- next to plain memory ---


def test_a_plain_block_serves_first_and_is_cut_exactly():
    alloc = on_device()
    address = alloc.malloc(30 * MIB)
    alloc.free(address)
    alloc.settings = EXPANDABLE
    assert alloc.malloc(30 * MIB - 512) == address
    assert states(alloc) == [[(30 * MIB - 512, "active_allocated"), (512, "inactive")]]
    check(alloc)


def test_switched_off_expandable_blocks_are_passed_over_but_stay_usable():
    alloc = expandable()
    address = alloc.malloc(30 * MIB)
    alloc.free(address)
    alloc.settings = "expandable_segments:False"
    other = alloc.malloc(30 * MIB)
    assert not segment_of(alloc, other)["is_expandable"]
    alloc.settings = EXPANDABLE
    assert alloc.malloc(30 * MIB) == address
    alloc.settings = "expandable_segments:False"
    alloc.free(address)
    alloc.free(other)
    empties(alloc)


def test_the_release_of_oversize_blocks_copes_with_expandable_ones():
    alloc = on_device(settings="max_split_size_mb:40,expandable_segments:False", limit=120 * MIB)
    blocks = []
    for expand in (False, True, False):
        alloc.settings = f"max_split_size_mb:40,expandable_segments:{expand}"
        blocks.append(alloc.malloc(40 * MIB))
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(40 * MIB)
    for address in blocks:
        alloc.free(address)
    alloc.malloc(120 * MIB)
    check(alloc)


def test_garbage_collection_passes_over_expandable_blocks():
    alloc = on_device(settings="garbage_collection_threshold:0.5,expandable_segments:False", limit=120 * MIB)
    blocks = [alloc.malloc(40 * MIB)]
    alloc.settings = "garbage_collection_threshold:0.5,expandable_segments:True"
    blocks.append(alloc.malloc(40 * MIB))
    for address in blocks:
        alloc.free(address)
    alloc.malloc(80 * MIB)
    check(alloc)


def test_expandable_memory_has_no_base_allocation():
    alloc = expandable()
    with pytest.raises(UnsupportedError, match="expandable"):
        alloc.inspection.base_allocation(alloc.malloc(512))


def test_sizes_are_reported_for_every_stream_except_the_default_one():
    alloc = expandable()
    for stream in (0, 5):
        alloc.malloc(512, stream)
        alloc.malloc(25 * MIB, stream)
    assert sorted(alloc.inspection.expandable_segment_sizes()) == [(5, False, 40 * MIB), (5, True, BUFFER)]


def test_the_page_of_a_range_is_that_of_its_beginning():
    alloc = expandable()
    first = alloc.malloc(25 * MIB)
    alloc.settings = EXPANDABLE + ",large_segment_size_mb:40"
    assert alloc.malloc(20 * MIB) == first + 25 * MIB
    assert reserved(alloc) == 3 * PAGE
    alloc.malloc(20 * MIB, stream=1)
    assert reserved(alloc) == 3 * PAGE + 40 * MIB
    check(alloc)


# --- limits ---


def test_the_limit_looks_at_the_segment_a_plain_request_would_need():
    alloc = expandable(limit=26 * MIB)
    alloc.malloc(25 * MIB)
    assert reserved(alloc) == 40 * MIB, "pages are larger than what the limit was asked for"
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(16 * MIB)
    alloc.malloc(15 * MIB)
    check(alloc)


# --- refusals ---


def test_pages_mapped_before_a_refusal_stay_and_are_free():
    alloc = expandable()
    first = alloc.malloc(PAGE)
    second = alloc.malloc(PAGE)
    alloc.malloc(PAGE)
    alloc.free(first)
    alloc.free(second)
    alloc.empty_cache()
    # Growing from the hole at the front takes two steps; the device refuses the second.
    assert alloc.malloc(PAGE - 512) == first
    alloc.device.refuse("chunk_create", times=5, after=1)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(3 * PAGE)
    check(alloc)
    assert reserved(alloc) == alloc.device.used
    empties_after_freeing_all(alloc)


def empties_after_freeing_all(alloc):
    for operation in ("chunk_create", "chunk_release", "map", "unmap", "set_access", "range_reserve", "range_release"):
        alloc.device.refuse(operation, times=0)
    for segment in alloc.history.segments():
        for block in segment["blocks"]:
            if block["state"] == "active_allocated":
                alloc.free(block["address"])
    empties(alloc)


@pytest.mark.parametrize("operation", ["chunk_create", "map", "set_access", "range_reserve"])
@pytest.mark.parametrize("after", [0, 1])
def test_a_growth_that_is_refused_changes_nothing(operation, after):
    alloc = expandable()
    alloc.malloc(512)
    before = states(alloc)
    alloc.device.refuse(operation, after=after if operation in ("chunk_create", "map") else 0, out_of_memory=False)
    with pytest.raises(DeviceError, match=operation):
        alloc.malloc(30 * MIB)
    assert states(alloc) == before
    assert reserved(alloc) == alloc.device.used == BUFFER
    check(alloc)
    alloc.malloc(30 * MIB)
    empties_after_freeing_all(alloc)


def test_a_range_that_was_refused_its_first_page_serves_the_next_attempt():
    alloc = expandable()
    alloc.device.refuse("chunk_create", times=2)
    with pytest.raises(OutOfMemoryError):
        alloc.malloc(30 * MIB)
    alloc.malloc(30 * MIB)
    assert alloc.device.calls["range_reserve"] == 1
    empties_after_freeing_all(alloc)


def test_a_request_that_no_range_can_hold_reserves_none():
    alloc = expandable(100 * MIB)
    for _ in range(3):
        with pytest.raises(OutOfMemoryError):
            alloc.malloc(200 * MIB)
    assert alloc.device.calls["range_reserve"] == 0
    check(alloc)


@pytest.mark.parametrize("times", [1, 2, 3])
def test_a_page_that_the_device_will_not_take_back_is_not_lost(times):
    alloc = expandable()
    alloc.free(alloc.malloc(30 * MIB))
    alloc.device.refuse("chunk_release", times, out_of_memory=False)
    if times < 3:
        alloc.empty_cache()
    else:
        with pytest.raises(DeviceError, match="chunk_release"):
            alloc.empty_cache()
    check(alloc)
    assert reserved(alloc) == 0
    empties(alloc)


def test_a_page_that_could_not_be_undone_is_used_again():
    alloc = expandable()
    alloc.device.refuse("map", after=1, out_of_memory=False)
    alloc.device.refuse("chunk_release", times=2, out_of_memory=False)
    with pytest.raises(DeviceError, match="map"):
        alloc.malloc(30 * MIB)
    assert (reserved(alloc), alloc.device.used) == (0, 2 * PAGE)
    alloc.malloc(30 * MIB)
    assert (reserved(alloc), alloc.device.used) == (2 * PAGE, 2 * PAGE)
    check(alloc)


def test_a_page_that_could_not_be_undone_is_released_with_the_cache():
    alloc = expandable()
    alloc.device.refuse("set_access", out_of_memory=False)
    alloc.device.refuse("unmap", out_of_memory=False)
    with pytest.raises(DeviceError, match="set_access"):
        alloc.malloc(30 * MIB)
    assert (reserved(alloc), alloc.device.used) == (0, PAGE)
    empties(alloc)


def test_an_unmapping_that_stops_half_way_keeps_the_rest():
    alloc = expandable()
    address = alloc.malloc(90 * MIB)
    alloc.free(address)
    alloc.device.refuse("unmap", after=2, out_of_memory=False)
    with pytest.raises(DeviceError, match="unmap"):
        alloc.empty_cache()
    assert reserved(alloc) == alloc.device.used == 3 * PAGE
    check(alloc)
    assert alloc.malloc(90 * MIB) == address
    empties_after_freeing_all(alloc)


def test_addresses_that_the_device_will_not_take_back_serve_again():
    alloc = expandable()
    address = alloc.malloc(30 * MIB)
    alloc.free(address)
    alloc.device.refuse("range_release", out_of_memory=False)
    with pytest.raises(DeviceError, match="range_release"):
        alloc.empty_cache()
    check(alloc)
    assert alloc.device.used == 0
    assert alloc.malloc(30 * MIB) == address
    empties_after_freeing_all(alloc)


# --- private pools ---


def test_a_private_pool_grows_in_ranges_of_its_own():
    alloc = expandable()
    outside = alloc.malloc(5 * MIB)
    pool = alloc.pool()
    with pool:
        inside = alloc.malloc(5 * MIB)
    assert segment_of(alloc, inside)["segment_pool_id"] == pool.id
    assert segment_of(alloc, inside)["is_expandable"]
    alloc.free(inside)
    pool.close()
    alloc.free(outside)
    empties(alloc)


def test_a_pool_whose_pages_went_in_several_pieces_still_goes():
    """One growth, two releases: the pool's balance of growths and releases is then negative."""
    alloc = expandable()
    pool = alloc.pool()
    with pool:
        whole = alloc.malloc(3 * PAGE)
        alloc.free(whole)
        first, middle, last = (alloc.malloc(PAGE) for _ in range(3))
    alloc.free(first)
    alloc.free(last)
    pool.close()
    assert reserved(alloc) == PAGE
    check(alloc)
    alloc.free(middle)
    empties(alloc)
    alloc.pools.create_or_incref(pool.id)  # the id is free again: the pool is deleted
    assert alloc.pools.use_count(pool.id) == 1
