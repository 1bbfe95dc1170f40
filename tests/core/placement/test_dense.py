"""What only dense placement does: refused settings and devices, sharing, streams, private pools, faults."""

from __future__ import annotations

import pytest

from allotment import Allocator, Backend
from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import AllotmentError, SettingsError
from helpers.effort import sample
from helpers.engine import GIB, MIB, check
from helpers.lives import Life, lived_twice, undisturbed

CROWDED = ("crowded", "crowded streams", "crowded pools")


def dense(capacity: int = GIB, more: str = "", **options: object) -> Allocator:
    return Allocator(SimulatedDevice(capacity), settings=f"placement:dense{more}", **options)


@pytest.mark.parametrize("key", ["expandable_segments:True", "max_split_size_mb:64", "max_non_split_rounding_mb:64"])
def test_keys_without_meaning_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match="no meaning"):
        dense(more=f",{key}")


@pytest.mark.parametrize("key", ["dense_grain:11", "dense_slack:2", "dense_wait_reuse:never", "dense_views:0"])
def test_values_out_of_range_are_refused(key: str) -> None:
    with pytest.raises(SettingsError, match=key.split(":")[0]):
        dense(more=f",{key}")


def test_the_keys_of_dense_mean_nothing_to_the_placement_of_pytorch() -> None:
    with pytest.raises(SettingsError, match="no meaning to placement:torch"):
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


def test_sharing_is_refused() -> None:
    allocator = dense()
    address = allocator.malloc(MIB)
    with pytest.raises(AllotmentError):
        allocator.share(address)


def test_a_checkpoint_of_a_private_pool_is_refused() -> None:
    allocator = dense()
    pool = allocator.pool()
    with pool:
        allocator.malloc(MIB)
    with pytest.raises(AllotmentError):
        pool.checkpoint()


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
    allocator.check_invariants()


def test_a_first_amount_is_obtained_with_the_first_request() -> None:
    allocator = dense(more=",dense_start:512MiB")
    allocator.malloc(MIB)
    stats = allocator.stats()
    assert stats["reserved_bytes.all.current"] == 512 * MIB and stats["dense.chunks"] == 64
    allocator.malloc(400 * MIB)
    assert allocator.stats()["reserved_bytes.all.current"] == 512 * MIB
    allocator.check_invariants()


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
    allocator.check_invariants()


def test_memory_that_waits_for_other_streams_is_reused_before_memory_is_out() -> None:
    allocator = dense(200 * MIB)
    block = allocator.malloc(150 * MIB, 1)
    allocator.device.launch(2)
    allocator.record_stream(block, 2)
    allocator.free(block)
    allocator.malloc(150 * MIB, 1)
    assert allocator.stats()["dense.wait_reuses"] == 1
    allocator.check_invariants()


def test_a_private_pool_shares_nothing_and_gives_all_back() -> None:
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
    check(allocator) if allocator.stats()["segment.all.current"] == 0 else allocator.check_invariants()


def test_emptying_the_cache_gives_back_what_is_wholly_free() -> None:
    allocator = dense()
    kept = allocator.malloc(10 * MIB)
    allocator.free(allocator.malloc(300 * MIB))
    allocator.empty_cache()
    allocator.check_invariants()
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


@pytest.mark.parametrize("out_of_memory", [True, False], ids=["out of memory", "device error"])
@pytest.mark.parametrize("times", [1, 1 << 62], ids=["once", "from then on"])
@pytest.mark.parametrize("name", CROWDED)
def test_whichever_call_to_the_device_fails_nothing_is_lost(name: str, times: int, out_of_memory: bool) -> None:
    expected, calls = undisturbed(name, "dense")
    for after in sample(range(sum(calls.values()))):
        life = Life("dense")
        life.device.refuse_calls(times, after, out_of_memory=out_of_memory)
        assert lived_twice(name, life) == expected, f"after {after} calls"
