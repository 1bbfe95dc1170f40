"""Expandable segments on real memory: they grow in place, shrink in the middle, and the system gets its pages back."""

from __future__ import annotations

import ctypes
import os
import random
import re
from pathlib import Path

import numpy as np
import pytest

import allotment
from allotment._core.contract.probe import Probe

MIB = 1 << 20
PAGE = 20 * MIB


def array_at(address: int, size: int) -> np.ndarray:
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


def resident_bytes() -> int:
    """The resident memory of this process; of shared mappings only this process's share."""
    text = Path(f"/proc/{os.getpid()}/smaps_rollup").read_text()
    return int(re.search(r"^Pss:\s+(\d+)", text, re.MULTILINE)[1]) << 10  # type: ignore[index]


def test_patterns_survive_growing_unmapping_in_the_middle_and_growing_again() -> None:
    allocator = allotment.Allocator("host", settings="expandable_segments:True")
    chance = random.Random(3)
    live: dict[int, tuple[int, int]] = {}
    for step in range(400):
        if live and (chance.random() < 0.45 or len(live) > 24):
            address = chance.choice(list(live))
            size, pattern = live.pop(address)
            assert (array_at(address, size) == pattern).all()
            allocator.free(address)
        else:
            size, pattern = chance.randrange(1, 12 * MIB), chance.randrange(256)
            address = allocator.malloc(size)
            array_at(address, size).fill(pattern)
            live[address] = size, pattern
        if step % 20 == 19:
            allocator.empty_cache()
        allocator.inspection.check_invariants()
        assert all(array_at(a, 1)[0] == pattern for a, (_, pattern) in live.items())
    assert all((array_at(a, size) == pattern).all() for a, (size, pattern) in live.items())
    assert allocator.stats()["num_device_free"] > 0


def test_resident_memory_falls_by_the_released_bytes() -> None:
    allocator = allotment.Allocator("host", settings="expandable_segments:True")
    blocks = [allocator.malloc(PAGE) for _ in range(12)]
    for block in blocks:
        array_at(block, PAGE).fill(1)
    before = resident_bytes()
    for block in blocks[2:10]:  # a hole in the middle of the segment
        allocator.free(block)
    allocator.empty_cache()
    given_back = before - resident_bytes()
    assert allocator.stats()["reserved_bytes.all.current"] == 4 * PAGE
    assert given_back == pytest.approx(8 * PAGE, abs=PAGE // 4)
    assert (array_at(blocks[1], PAGE) == 1).all() and (array_at(blocks[10], PAGE) == 1).all()
    again = allocator.malloc(3 * PAGE)
    assert again == blocks[2]  # the lowest place where it fits: in the hole
    allocator.inspection.check_invariants()


def test_one_chunk_at_two_addresses_is_one_memory() -> None:
    probe = Probe(allotment.Allocator("host").device)
    base = probe.range_reserve(2 * PAGE)
    chunk = probe.chunk_create(PAGE)
    for address in (base, base + PAGE):
        probe.map(address, PAGE, chunk)
        probe.set_access(address, PAGE, 0)
    array_at(base, PAGE).fill(42)
    assert (array_at(base + PAGE, PAGE) == 42).all()
    probe.unmap(base, PAGE)
    assert (array_at(base + PAGE, PAGE) == 42).all()
    probe.unmap(base + PAGE, PAGE)
    probe.chunk_release(chunk, PAGE)
    probe.range_release(base, 2 * PAGE)
