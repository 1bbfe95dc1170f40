"""Settings that change while the allocator runs: which act at once, which are reset, which stay."""

import pytest

from allotment.errors import SettingsError
from helpers.engine import GIB, MIB, SEGMENT, check, empties, on_device, reserved, segment_of, unchanged


def grown_by(alloc, size):
    """Return the (allocated, requested) bytes that a request of this size adds."""
    before = alloc.stats()
    address = alloc.malloc(size)
    after = alloc.stats()
    alloc.free(address)
    alloc.empty_cache()
    check(alloc)
    return tuple(after[key] - before[key] for key in ("allocated_bytes.all.current", "requested_bytes.all.current"))


def test_each_string_starts_from_plain_rounding():
    alloc = on_device(4 * GIB)
    assert grown_by(alloc, 84 * MIB) == (84 * MIB, 84 * MIB)
    alloc.settings = "roundup_power2_divisions:4"
    assert grown_by(alloc, 84 * MIB) == (96 * MIB, 84 * MIB)
    alloc.settings = "garbage_collection_threshold:0.5"
    assert grown_by(alloc, 84 * MIB) == (84 * MIB, 84 * MIB)


def test_a_list_of_divisions_goes_by_size():
    alloc = on_device(4 * GIB, "roundup_power2_divisions:[64:8,128:2,256:2,512:2,1024:1,>:1]")
    assert grown_by(alloc, 84 * MIB) == (88 * MIB, 84 * MIB)
    assert grown_by(alloc, 400 * MIB) == (512 * MIB, 400 * MIB)
    assert grown_by(alloc, 1100 * MIB) == (1100 * MIB, 1100 * MIB)


def test_letting_go_of_the_lock_changes_no_size():
    alloc = on_device(settings="release_lock_on_cudamalloc:True")
    assert grown_by(alloc, 84 * MIB) == (84 * MIB, 84 * MIB)


def test_what_a_string_leaves_out_is_reset_or_stays():
    alloc = on_device(
        settings="max_split_size_mb:40,garbage_collection_threshold:0.5,expandable_segments:True,large_segment_size_mb:40"
    )
    alloc.settings = ""
    settings = alloc.settings
    assert settings.max_split_size == 2**64 - 1
    assert settings.garbage_collection_threshold == 0
    assert settings.expandable_segments
    assert settings.large_segment_size == settings.max_non_split_rounding == 40 * MIB
    assert alloc.stats()["max_split_size"] == 40 * MIB, "the counters tell how the allocator began"


def test_expandable_segments_come_and_go_with_the_setting():
    alloc = on_device()
    blocks = []
    for on in (False, True, False, True):
        alloc.settings = f"expandable_segments:{on}"
        blocks.append(alloc.malloc(11 * MIB, stream=len(blocks)))
        assert segment_of(alloc, blocks[-1])["is_expandable"] == on
    for address in blocks:
        alloc.free(address)
    empties(alloc)


def test_the_size_of_medium_segments_changes_for_new_ones():
    alloc = on_device()
    alloc.malloc(3 * MIB)
    alloc.settings = "large_segment_size_mb:64"
    alloc.malloc(3 * MIB, stream=1)
    assert reserved(alloc) == SEGMENT + 64 * MIB
    check(alloc)


def test_the_last_string_is_reported_verbatim():
    alloc = on_device(settings="max_split_size_mb: 64")
    assert alloc.snapshot()["allocator_settings"]["PYTORCH_CUDA_ALLOC_CONF"] == "max_split_size_mb: 64"
    alloc.settings = "expandable_segments:True"
    reported = alloc.snapshot()["allocator_settings"]
    assert reported["PYTORCH_CUDA_ALLOC_CONF"] == "expandable_segments:True"
    assert (reported["expandable_segments"], reported["max_split_size"]) == (True, -1)


def test_read_leniently_what_stands_before_a_fault_is_applied():
    alloc = on_device(settings="max_split_size_mb:40")
    with pytest.raises(SettingsError, match="Unrecognized key"):
        alloc._configure_leniently("garbage_collection_threshold:0.5,nonsense:1,max_split_size_mb:64")
    assert alloc.settings.garbage_collection_threshold == 0.5
    assert alloc.settings.max_split_size == 2**64 - 1
    check(alloc)


def test_read_strictly_nothing_of_a_wrong_string_is_applied():
    alloc = on_device(settings="max_split_size_mb:40")
    with unchanged(alloc), pytest.raises(SettingsError, match="nonsense"):
        alloc.settings = "garbage_collection_threshold:0.5,nonsense:1"
