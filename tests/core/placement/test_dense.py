"""Behaviour that only dense placement has: refused settings and devices, sharing, streams, private pools, faults."""

from __future__ import annotations

import gc
import pickle
import random
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allotment import Allocator, Backend, Stream
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import AllotmentError, OutOfMemoryError, SettingsError, UnsupportedError
from helpers.effort import sample
from helpers.engine import GIB, MIB, check
from helpers.faulty import faulty
from helpers.lives import LIVES, Life, lived_twice, undisturbed
from helpers.relay_device import RelayDevice

CROWDED = ("crowded", "crowded streams", "crowded pools", "checkpoints")
LIVES_OF_DENSE = [
    pytest.param(name, marks=[] if name in CROWDED else pytest.mark.slow) for name in LIVES if name != "sharing"
]


def dense(capacity: int = GIB, more: str = "", **options: object) -> Allocator:
    return Allocator(SimulatedDevice(capacity), settings=f"placement:dense{more}", **options)


@pytest.mark.parametrize("key", ["expandable_segments:True", "max_split_size_mb:64", "max_non_split_rounding_mb:64"])
def test_keys_without_meaning_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match="does not use it"):
        dense(more=f",{key}")


@pytest.mark.parametrize("key", ["dense_grain:11", "dense_slack:2", "dense_wait_reuse:never", "dense_views:0"])
def test_values_out_of_range_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match=key.split(":")[0]):
        dense(more=f",{key}")


def test_the_keys_of_dense_mean_nothing_to_the_placement_of_pytorch() -> None:
    with pytest.raises(SettingsError, match="placement:torch does not use it"):
        Allocator("sim:1GiB", settings="dense_grain:24")


def test_a_device_without_virtual_memory_cannot_have_it() -> None:
    class Plain(Backend):
        def allocate(self, size: int, stream: int) -> int:
            return 1 << 40

        def free(self, address: int, size: int) -> None:
            pass

    with pytest.raises(SettingsError, match="virtual memory"):
        Allocator(Plain(), settings="placement:dense")
    with pytest.raises(SettingsError, match="virtual memory"):
        Allocator(Plain()).pool(placement="dense")


def test_a_block_in_chunks_of_several_sizes_has_no_form_of_pytorchs() -> None:
    allocator = dense(more=",dense_grain:256")
    blocks = [allocator.malloc(size * MIB) for size in (2, 6, 40)]
    for block in blocks:
        allocator.free(block)
    address = allocator.malloc(48 * MIB)
    pieces = allocator.sharing._share_block(address, None).pieces
    assert len({size for _, size in pieces}) > 1
    assert sum(size for _, size in pieces) >= 48 * MIB
    with pytest.raises(UnsupportedError, match="placement:dense"):
        allocator.share_torch(address)
    allocator.inspection.check_invariants()


def test_a_private_pool_is_brought_back_to_how_it_was_also_after_it_has_grown() -> None:
    allocator = dense()
    pool = allocator.pool()
    with pool:
        a, b, c = (allocator.malloc(size) for size in (MIB, 3 * MIB, 5 * MIB))
    allocator.free(b)
    state = pool.checkpoint()
    allocator.free(a)
    with pool:
        later = [allocator.malloc(20 * MIB), allocator.malloc(MIB)]
    reserved = allocator.stats()["reserved_bytes.all.current"]

    freed, created = pool.restore(state)

    assert set(freed) == {c, *later} and set(created) == {a, c}
    assert allocator.stats()["reserved_bytes.all.current"] == reserved
    allocator.inspection.check_invariants()
    with pool:
        assert allocator.malloc(3 * MIB) == b
    assert pool.restore(state) == ([a, b, c], [a, c])
    allocator.inspection.check_invariants()


def test_restored_blocks_belong_to_the_streams_that_they_were_of() -> None:
    allocator = dense()
    pool = allocator.pool()
    with pool:
        mine, other = allocator.malloc(2 * MIB, 0), allocator.malloc(2 * MIB, 1)
        state = pool.checkpoint()
        allocator.free(mine)
        allocator.free(other)
        pool.restore(state)
        allocator.free(other)
        assert allocator.malloc(2 * MIB, 0) != other
        assert allocator.malloc(2 * MIB, 1) == other
    allocator.inspection.check_invariants()


def test_a_state_of_memory_that_is_gone_is_not_restored() -> None:
    allocator = dense()
    pool = allocator.pool()
    with pool:
        allocator.free(allocator.malloc(8 * MIB))
    state = pool.checkpoint()
    pool.close()
    with pytest.raises(AllotmentError):
        allocator.pools.restore(state)


def test_free_chunks_are_put_side_by_side_instead_of_growing() -> None:
    allocator = dense(more=",dense_slack:0")
    blocks = [allocator.malloc(64 * MIB) for _ in range(8)]
    reserved = allocator.stats()["reserved_bytes.all.current"]
    for block in blocks[::2]:
        allocator.free(block)

    allocator.malloc(200 * MIB)

    stats = allocator.stats()
    assert stats["reserved_bytes.all.current"] - reserved <= 64 * MIB
    assert stats["dense.stitches"] == 1 and stats["dense.views.current"] > stats["dense.chunks"]
    allocator.inspection.check_invariants()


def test_a_first_amount_is_obtained_with_the_first_request() -> None:
    allocator = dense(more=",dense_start:512MiB")
    allocator.malloc(MIB)
    stats = allocator.stats()
    assert stats["reserved_bytes.all.current"] == 512 * MIB and stats["dense.chunks"] == 64
    allocator.malloc(400 * MIB)
    assert allocator.stats()["reserved_bytes.all.current"] == 512 * MIB
    allocator.inspection.check_invariants()


def test_nothing_is_stitched_with_one_view() -> None:
    allocator = dense(more=",dense_views:1")
    blocks = [allocator.malloc(64 * MIB) for _ in range(6)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.malloc(150 * MIB)
    stats = allocator.stats()
    assert stats["dense.stitches"] == 0 and stats["dense.views.current"] == stats["dense.chunks"]


def test_another_stream_gets_freed_memory_after_a_wait_on_the_device() -> None:
    allocator = dense(200 * MIB)
    allocator.free(allocator.malloc(150 * MIB, 1))
    allocator.malloc(150 * MIB, 2)
    assert allocator.stats()["dense.waits"] == 1
    assert allocator.stats()["reserved_bytes.all.current"] <= 200 * MIB
    allocator.inspection.check_invariants()


def test_memory_that_waits_for_other_streams_is_reused_before_memory_is_out() -> None:
    allocator = dense(200 * MIB)
    block = allocator.malloc(150 * MIB, 1)
    allocator.device.launch(2)
    allocator.record_stream(block, 2)
    allocator.free(block)
    allocator.malloc(150 * MIB, 1)
    assert allocator.stats()["dense.wait_reuses"] == 1
    allocator.inspection.check_invariants()


def test_a_private_pool_shares_nothing_and_releases_all() -> None:
    allocator = dense()
    allocator.free(allocator.malloc(100 * MIB))
    pool = allocator.pool()
    with pool:
        inside = allocator.malloc(50 * MIB)
    assert pool.reserved_bytes == 50 * MIB
    allocator.free(inside)
    assert allocator.malloc(40 * MIB) != inside
    pool.close()
    allocator.empty_cache()
    check(allocator) if allocator.stats()["segment.all.current"] == 0 else allocator.inspection.check_invariants()


def test_emptying_the_cache_releases_wholly_free_memory() -> None:
    allocator = dense()
    kept = allocator.malloc(10 * MIB)
    allocator.free(allocator.malloc(300 * MIB))
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert allocator.stats()["reserved_bytes.all.current"] <= 64 * MIB
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == allocator.device.used == 0


def test_each_byte_is_shown_once_in_a_snapshot() -> None:
    allocator = dense(more=",dense_slack:0")
    blocks = [allocator.malloc(64 * MIB) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    blocks = [*blocks[1::2], allocator.malloc(200 * MIB)]

    shown = [block for segment in allocator.snapshot()["segments"] for block in segment["blocks"]]

    assert sum(block["size"] for block in shown) == allocator.stats()["reserved_bytes.all.current"]
    in_use = {block["address"] for block in shown if block["state"] == "active_allocated"}
    assert in_use == set(blocks)


# --- views, gaps, pools' memory -------------------------------------------------------------------------------------


def stitch(allocator: Allocator, rounds: int) -> None:
    """Make requests of changing sizes over fragmented free memory: each round stitches chunks anew."""
    for i in range(rounds):
        blocks = [allocator.malloc((20 + 2 * ((i + k) % 7)) * MIB) for k in range(12)]
        for block in blocks[::2]:
            allocator.free(block)
        large = [allocator.malloc((50 + 14 * (i % 5)) * MIB)]
        for block in [*blocks[1::2], *large]:
            allocator.free(block)
        allocator.inspection.check_invariants()


def test_a_request_is_put_together_from_as_many_pieces_as_it_takes() -> None:
    """On a nearly full device chunks are small: a large request needs many of them."""
    allocator = dense(2 * GIB)
    blocks = [allocator.malloc(4 * MIB) for _ in range(400)]
    for block in blocks[::2]:
        allocator.free(block)
    reserved = allocator.stats()["reserved_bytes.all.current"]
    allocator.malloc(500 * MIB)
    allocator.inspection.check_invariants()
    assert allocator.stats()["reserved_bytes.all.current"] <= reserved + 24 * MIB  # growth that is always allowed
    assert allocator.stats()["dense.views.current"] - allocator.stats()["dense.chunks"] > 64


def test_a_chunk_that_has_too_many_views_loses_the_one_used_longest_ago() -> None:
    kept, limited = dense(more=",dense_slack:0,dense_views:1000"), dense(more=",dense_slack:0,dense_views:2")
    stitch(kept, 12)
    stitch(limited, 12)
    stats = limited.stats()
    assert stats["dense.views_dropped"] == stats["dense.driver_calls.unmap"] > 0
    assert kept.stats()["dense.views_dropped"] == 0


def test_a_view_that_work_may_still_use_stays() -> None:
    allocator = dense(more=",dense_slack:0,dense_views:2")
    allocator.device.launch(0)
    stitch(allocator, 12)
    assert allocator.stats()["dense.views_dropped"] == 0
    allocator.device.finish(0)
    stitch(allocator, 12)
    assert allocator.stats()["dense.views_dropped"] > 0


def test_views_that_come_and_go_do_not_do_so_forever() -> None:
    allocator = dense(more=",dense_slack:0,dense_views:2")
    stitch(allocator, 280)
    calls = allocator.stats()["dense.driver_calls.unmap"]
    assert calls > 0
    stitch(allocator, 140)
    assert allocator.stats()["dense.driver_calls.unmap"] == calls


def test_new_memory_is_mapped_where_memory_was_released() -> None:
    allocator = dense()
    first, second = allocator.malloc(48 * MIB), allocator.malloc(48 * MIB)
    allocator.free(first)
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] < 80 * MIB
    again = allocator.malloc(40 * MIB)
    assert again == first and allocator.stats()["dense.gaps_filled"] == 1
    allocator.inspection.check_invariants()
    allocator.free(second)
    allocator.free(again)
    allocator.empty_cache()
    assert allocator.device.used == 0


def test_a_device_without_further_addresses_serves_from_those_that_it_gave() -> None:
    device = faulty(RelayDevice)(SimulatedDevice(2 * GIB))
    calls = 0

    def faults(number: int, method: str) -> BaseException | None:
        nonlocal calls
        calls += method == "range_reserve"
        return MemoryError() if method == "range_reserve" and calls > 1 else None

    device.faults = faults
    allocator = Allocator(device, settings="placement:dense")
    draw = random.Random(1)
    blocks = []
    for number in range(60):
        blocks.append(allocator.malloc(draw.randrange(1, 40) * MIB))
        if number % 3 == 0:
            allocator.free(blocks.pop(draw.randrange(len(blocks))))
        allocator.inspection.check_invariants()
    assert calls > 1  # it tried to put free memory under new addresses
    with pytest.raises(OutOfMemoryError, match="Out of memory"):
        allocator.malloc(2 * GIB)
    for block in blocks:
        allocator.free(block)
    allocator.empty_cache()
    assert device.held == {"ranges": 0, "chunks": 0, "mappings": 0}


def test_addresses_do_not_run_out_when_memory_is_released_repeatedly() -> None:
    allocator = dense(256 * MIB)
    kept = [allocator.malloc(MIB)]
    for _ in range(200):
        block = allocator.malloc(100 * MIB)
        kept.append(allocator.malloc(MIB))
        allocator.free(block)
        allocator.free(kept.pop(0))
        allocator.empty_cache()
        allocator.inspection.check_invariants()
    assert allocator.stats()["dense.driver_calls.reserve"] <= 2


def test_memory_of_pools_without_users_is_reused_without_a_device_call() -> None:
    allocator = dense(200 * MIB)
    kept = allocator.malloc(10 * MIB)
    allocator.pools.begin_allocate_to_pool((7, 0))
    block = allocator.malloc(120 * MIB)
    allocator.pools.end_allocate_to_pool((7, 0))
    allocator.free(block)
    allocator.pools.release((7, 0))
    created = allocator.device.calls["chunk_create"]

    assert allocator.malloc(110 * MIB) == block

    stats = allocator.stats()
    assert stats["dense.adopted"] > 0 and allocator.device.calls["chunk_create"] == created
    assert allocator.history.segments((7, 0)) == []
    allocator.inspection.check_invariants()
    allocator.free(block)
    allocator.free(kept)
    allocator.empty_cache()
    assert allocator.device.used == 0


def test_a_private_pool_gets_what_the_default_one_has_cached_when_memory_is_out() -> None:
    allocator = dense(200 * MIB)
    allocator.free(allocator.malloc(150 * MIB))
    with allocator.pool():
        block = allocator.malloc(120 * MIB)
    allocator.inspection.check_invariants()
    allocator.free(block)


# --- when the device refuses ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("operation", ["map", "set_access"])
def test_a_mapping_that_is_refused_is_done_without_stitching(operation: str) -> None:
    allocator = dense(more=",dense_slack:0")
    blocks = [allocator.malloc(64 * MIB) for _ in range(8)]
    for block in blocks[::2]:
        allocator.free(block)
    allocator.device.refuse(operation, out_of_memory=False)

    allocator.malloc(200 * MIB)

    assert allocator.stats()["dense.stitches"] == 0
    allocator.inspection.check_invariants()


def test_memory_of_a_destroyed_stream_is_reused_after_a_wait_for_the_device() -> None:
    allocator = dense(200 * MIB)
    stream = allocator.device.create_stream()
    allocator.free(allocator.malloc(150 * MIB, stream))
    allocator.device.destroy_stream(stream)
    allocator.malloc(150 * MIB)
    allocator.inspection.check_invariants()


def test_a_stream_in_a_capture_is_not_waited_for() -> None:
    allocator = dense(more=",dense_slack:0")
    blocks = [allocator.malloc(64 * MIB, 1) for _ in range(6)]
    for block in blocks[::2]:
        allocator.free(block)
    capture = allocator.device.begin_capture(1)
    allocator.pools.begin_allocate_to_pool((9, 0), capture=capture)
    recorded = allocator.device.calls["event_record"]

    outside = [allocator.malloc(size * MIB, 0) for size in (60, 100)]
    allocator.empty_cache()

    assert allocator.device.calls["event_record"] == recorded and allocator.stats()["dense.waits"] == 0
    allocator.inspection.check_invariants()
    allocator.device.end_capture(1)
    allocator.pools.end_allocate_to_pool((9, 0))
    assert allocator.malloc(64 * MIB, 0) in blocks[::2]
    for block in outside:
        allocator.free(block)
    allocator.inspection.check_invariants()


def test_garbage_is_released_before_memory_grows() -> None:
    allocator = dense(more=",garbage_collection_threshold:0.5", limit=200 * MIB)
    allocator.free(allocator.malloc(120 * MIB, 1))
    allocator.device.finish()
    allocator.free(allocator.malloc(150 * MIB, 1))
    assert allocator.stats()["num_device_free"] == 0
    kept = allocator.malloc(64 * MIB, 1)
    allocator.free(allocator.malloc(4 * MIB, 1))
    released = allocator.device.calls["chunk_release"]
    with_other_stream = allocator.malloc(130 * MIB, 1)
    assert allocator.device.calls["chunk_release"] >= released
    for block in (kept, with_other_stream):
        allocator.free(block)
    allocator.inspection.check_invariants()


def test_out_of_memory_says_how_much_could_have_been_joined() -> None:
    allocator = dense(200 * MIB)
    blocks = [allocator.malloc(20 * MIB) for _ in range(9)]
    for block in blocks[::2]:
        allocator.free(block)
    with pytest.raises(OutOfMemoryError, match="by putting free memory side by side") as caught:
        allocator.malloc(150 * MIB)
    facts = caught.value.facts
    assert facts.joinable is not None and facts.largest_free <= facts.joinable < 150 * MIB <= facts.device_total
    assert "expandable_segments" not in str(caught.value)


def test_an_allocator_that_is_dropped_leaves_live_blocks_where_they_are() -> None:
    device = SimulatedDevice(GIB)
    allocator = Allocator(device, settings="placement:dense")
    allocator.malloc(10 * MIB)
    used = device.used
    del allocator
    gc.collect()
    assert device.used == used


# --- what others see --------------------------------------------------------------------------------------------------


def mapped_after(history: list[dict[str, Any]]) -> Iterator[tuple[dict[str, Any], set[tuple[int, int]]]]:
    """Each entry of a history, and what is mapped after it, in units of 512 bytes as (first, end)."""
    mapped: set[int] = set()
    for entry in history:
        units = range(entry["addr"] >> 9, (entry["addr"] + entry["size"]) >> 9) if "addr" in entry else range(0)
        if entry["action"] == "segment_map":
            assert mapped.isdisjoint(units)
            mapped.update(units)
        elif entry["action"] == "segment_unmap":
            assert mapped.issuperset(units)
            mapped.difference_update(units)
        yield entry, mapped


@pytest.mark.parametrize("views", [2, 8])
def test_the_history_shows_each_byte_once_where_it_is(views: int) -> None:
    allocator = dense(more=f",dense_slack:0,dense_views:{views}")
    allocator.record_history("all")
    stitch(allocator, 8)
    kept = [allocator.malloc(30 * MIB), allocator.malloc(44 * MIB, 1)]
    snapshot = allocator.snapshot()
    stats = allocator.stats()
    assert stats["dense.stitches"] > 0
    mapped: set[int] = set()
    for entry, mapped in mapped_after(snapshot["device_traces"][0]):
        if entry["action"] == "alloc":
            assert mapped.issuperset(range(entry["addr"] >> 9, (entry["addr"] + entry["size"]) >> 9))
    shown = {
        unit
        for segment in snapshot["segments"]
        for unit in range(segment["address"] >> 9, (segment["address"] + segment["total_size"]) >> 9)
    }
    assert mapped == shown and len(mapped) << 9 == stats["reserved_bytes.all.current"]
    for block in kept:
        allocator.free(block)


def test_a_snapshot_shows_where_each_chunk_is_mapped(tmp_path: Path) -> None:
    allocator = dense(more=",dense_slack:0")
    stitch(allocator, 3)
    views = allocator.snapshot()["allotment_views"]
    stats = allocator.stats()
    assert len(views) == stats["dense.views.current"]
    assert sum({view["chunk"]: view["size"] for view in views}.values()) == stats["reserved_bytes.all.current"]
    assert len({(view["region"], view["chunk"]) for view in views}) == len(views)
    allocator.history.dump_snapshot(tmp_path / "dense.pickle")
    assert pickle.loads((tmp_path / "dense.pickle").read_bytes())["allotment_views"] == views
    assert "allotment_views" not in Allocator("sim:1GiB", settings="").snapshot()


def test_what_is_free_of_chunks_in_use_is_counted_as_split_off() -> None:
    allocator = dense()
    block = allocator.malloc(5 * MIB)
    stats = allocator.stats()
    assert stats["inactive_split_bytes.all.current"] + 5 * MIB <= stats["reserved_bytes.all.current"]
    assert stats["inactive_split.all.current"] == 1
    allocator.free(block)
    assert allocator.stats()["inactive_split_bytes.all.current"] == 0


def test_tenants_hold_the_bytes_that_they_requested() -> None:
    allocator = dense()
    block = allocator.tenant("me").malloc(3 * MIB)
    assert allocator.tenants()["me"]["allocated_bytes"] == 3 * MIB
    allocator.free(block)


# --- work that allocates ----------------------------------------------------------------------------------------------


def test_work_that_allocates_is_waited_for_without_the_lock() -> None:
    """Emptying the cache waits for the device; meanwhile a function on a stream must be able to call the allocator."""
    allocator = Allocator("host", settings="placement:dense")
    stream = Stream(allocator)
    begun, emptying = threading.Event(), threading.Event()
    done: list[int] = []

    def work() -> None:
        begun.set()
        emptying.wait(30)
        for _ in range(300):
            address = allocator.malloc(MIB)
            allocator.free(address)
            done.append(address)

    def empty() -> None:
        emptying.set()
        allocator.empty_cache()

    allocator.free(allocator.malloc(8 * MIB, stream))
    stream.submit(work)
    begun.wait(30)
    thread = threading.Thread(target=empty)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    stream.synchronize()
    assert len(done) == 300
    allocator.inspection.check_invariants()


# --- faults -----------------------------------------------------------------------------------------------------------


OUT_OF_MEMORY = pytest.mark.parametrize("out_of_memory", [True, False], ids=["out of memory", "device error"])
ONCE, FROM_THEN_ON = 1, 1 << 62


@OUT_OF_MEMORY
@pytest.mark.parametrize("times", [ONCE, FROM_THEN_ON], ids=["once", "from then on"])
@pytest.mark.parametrize("name", LIVES_OF_DENSE)
def test_whichever_call_to_the_device_fails_nothing_is_lost(name: str, times: int, out_of_memory: bool) -> None:
    expected, calls = undisturbed(name, "dense")
    for after in sample(range(sum(calls.values()))):
        life = Life("dense")
        life.device.refuse_calls(times, after, out_of_memory=out_of_memory)
        assert lived_twice(name, life) == expected, f"after {after} calls"


@OUT_OF_MEMORY
@pytest.mark.parametrize("name", CROWDED)
def test_whichever_operation_of_the_device_fails_nothing_is_lost(name: str, out_of_memory: bool) -> None:
    """One kind of call fails from some moment on; the call that undoes another then succeeds. Once: as above."""
    expected, calls = undisturbed(name, "dense")
    for operation, number in calls.items():
        for after in sample(range(number)):
            life = Life("dense")
            life.device.refuse(operation, FROM_THEN_ON, after, out_of_memory=out_of_memory)
            assert lived_twice(name, life) == expected, f"after {after} calls of {operation}"


def test_a_program_whose_sizes_never_repeat_needs_no_more_and_more_regions() -> None:
    allocator = dense(8 * GIB, more=",dense_slack:0,dense_grain:256")
    rng = random.Random(3)
    live: list[int] = []
    regions = []
    for step in range(6000):
        while len(live) > rng.randrange(8, 30):
            allocator.free(live.pop(rng.randrange(len(live))))
        live.append(allocator.malloc(rng.randrange(MIB, 40 * MIB)))
        if step % 200 == 0:
            allocator.empty_cache()
        if step % 2000 == 1999:
            regions.append(allocator.stats()["dense.regions"])
    assert regions[2] <= regions[0] + 2


@pytest.mark.parametrize("operation", ["map", "set_access"])
def test_a_driver_that_never_maps_is_out_of_memory_and_the_arena_is_whole(operation: str) -> None:
    device = SimulatedDevice(GIB)
    allocator = Allocator(device, settings="placement:dense")
    allocator.malloc(40 * MIB)
    device.refuse(operation, times=1000)

    with pytest.raises(OutOfMemoryError):
        allocator.malloc(100 * MIB)

    allocator.inspection.check_invariants()
    assert allocator.stats()["reserved_bytes.all.current"] == device.used
    device.refuse(operation, times=0)
    allocator.malloc(100 * MIB)
    allocator.inspection.check_invariants()
