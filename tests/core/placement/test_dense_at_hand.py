"""The block freed last is handed out again without a search only if the search would find the same bytes."""

from __future__ import annotations

import random

import pytest

from allotment import Allocator
from allotment._devices.simulated.device import SimulatedDevice
from helpers.effort import some
from helpers.entry_points import table_of

GIB = 1 << 30
SIZE = 4096


def dense(device: object = "sim:1GiB") -> Allocator:
    return Allocator(device, settings="placement:dense")


def blocks(allocator: Allocator, count: int) -> list[int]:
    return [allocator.malloc(SIZE) for _ in range(count)]


def test_a_block_that_comes_and_goes_keeps_its_address() -> None:
    allocator = dense()
    (address,) = blocks(allocator, 1)
    for _ in range(3):
        allocator.free(address)
        assert allocator.malloc(SIZE) == address
    assert allocator.stats()["allocation.all.allocated"] == 4
    allocator.inspection.check_invariants()


def test_a_free_block_before_it_is_used_first() -> None:
    allocator = dense()
    first = allocator.malloc(SIZE // 2)
    second, _ = blocks(allocator, 2)
    allocator.free(first)
    allocator.free(second)
    assert allocator.malloc(SIZE) == first


def test_free_memory_at_a_lower_place_is_used_first() -> None:
    allocator = dense()
    first, _, third, _ = blocks(allocator, 4)
    allocator.free(first)
    allocator.free(third)
    assert allocator.malloc(SIZE) == first


def test_a_larger_request_gets_it_joined_with_what_is_free_behind_it() -> None:
    allocator = dense()
    first, second, _ = blocks(allocator, 3)
    allocator.free(second)
    allocator.free(first)
    assert allocator.malloc(2 * SIZE) == first


def test_another_stream_does_not_get_it_without_a_wait() -> None:
    device = SimulatedDevice(GIB)
    allocator = dense(device)
    (address,) = blocks(allocator, 1)
    device.launch(0)
    allocator.free(address)
    assert allocator.malloc(SIZE, 1) == address
    assert allocator.stats()["dense.waits"] == 1


def test_its_bytes_are_free_for_everybody_who_asks() -> None:
    allocator = dense()
    first, second = blocks(allocator, 2)
    allocator.free(first)
    states = [block["state"] for segment in allocator.snapshot()["segments"] for block in segment["blocks"]]
    assert states == ["inactive", "active_allocated", "inactive"]
    allocator.free(second)
    allocator.empty_cache()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


@pytest.mark.parametrize("seed", range(some(40)))
def test_drawn_calls_of_few_sizes_decide_and_count_as_with_a_history(seed: int) -> None:
    """A history makes every free and every request take the long path. In half of the runs, memory is stitched."""
    choose = random.Random(seed)
    short, long, from_c = (dense("sim:8GiB") for _ in range(3))
    long.record_history(context=None)
    table = table_of(from_c)
    sizes = [500, SIZE, SIZE, SIZE, 3 * SIZE, 5 << 20, *([9 << 20, 20 << 20] if seed % 2 else [])]
    live: list[int] = []
    for step in range(600):
        if live and choose.random() < (0.5 if len(live) < 30 else 0.6):
            address = live.pop(choose.choice((-1, choose.randrange(len(live)))))
            short.free(address)
            long.free(address)
            assert table.free(address)
        else:
            size, stream = choose.choice(sizes), choose.choice((0, 0, 1, 2))
            live.append(short.malloc(size, stream))
            assert live[-1] == long.malloc(size, stream) == table.allocate(size, stream)
        assert short.stats() == long.stats() == from_c.stats()
        if step % 100 == 99:
            short.inspection.check_invariants()
    assert seed % 2 == 0 or short.stats()["dense.stitches"] > 0
