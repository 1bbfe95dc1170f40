"""Tests docs/differences.md, the page on surprising behaviour of PyTorch that Allotment copies."""

import threading
from pathlib import Path

import pytest

import allotment
from allotment.errors import OutOfMemoryError, PoolError

MIB = 1 << 20
PAGE = (Path(__file__).parents[1] / "docs" / "differences.md").read_text()


def idle_cache_while_routing(compat):
    """Return an allocator with all memory idle in blocks that are too small for a request inside `with pool:`."""
    allocator = allotment.Allocator("sim:100MiB", settings=f"compat:{compat}")
    for address in [allocator.malloc(30 * MIB) for _ in range(3)]:
        allocator.free(address)
    with allocator.pool():
        return allocator.malloc(40 * MIB)


def test_nothing_is_released_while_a_thread_routes_to_a_pool_by_the_rules_of_2_11():
    with pytest.raises(OutOfMemoryError):
        idle_cache_while_routing("2.11")
    assert idle_cache_while_routing("2.13")
    assert "while any thread routes requests to a pool" in PAGE


@pytest.mark.threads
def test_a_lender_with_another_thread_inside_is_an_error_for_the_thread_that_runs_short():
    allocator = allotment.Allocator("sim:100MiB")
    lender = allocator.pool(use_on_oom=True)
    inside, done = threading.Event(), threading.Event()

    def stay_inside():
        with lender:
            allocator.free(allocator.malloc(60 * MIB))
            inside.set()
            done.wait()

    thread = threading.Thread(target=stay_inside)
    thread.start()
    inside.wait()
    try:
        with pytest.raises(PoolError, match="already"):
            allocator.malloc(60 * MIB)
    finally:
        done.set()
        thread.join()
    assert "a `PoolError` in a thread that never named it" in PAGE


def test_an_oversize_block_serves_what_is_less_than_20_mib_smaller():
    allocator = allotment.Allocator("sim:10GiB", settings="max_split_size_mb:200")
    allocator.free(allocator.malloc(300 * MIB))
    allocator.free(allocator.malloc(270 * MIB))
    assert allocator.stats()["segment.all.allocated"] == 2
    allocator = allotment.Allocator("sim:10GiB", settings="max_split_size_mb:200")
    allocator.free(allocator.malloc(300 * MIB))
    allocator.free(allocator.malloc(290 * MIB))
    assert allocator.stats()["segment.all.allocated"] == 1
    assert "only if the block is less than 20 MiB larger" in PAGE
