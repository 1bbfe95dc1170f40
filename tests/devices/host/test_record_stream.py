"""Two host streams that really run at the same time: why `record_stream` is needed."""

from __future__ import annotations

import ctypes
import threading

import numpy as np
import pytest

import allotment

RUNS = 100
SIZE = 1 << 16


def array_at(address: int, size: int = SIZE) -> np.ndarray:
    """Memory at an address, without an owner: only the allocator's rules protect it."""
    return np.frombuffer((ctypes.c_char * size).from_address(address), np.uint8)


def reader_sees_what_was_written(allocator: allotment.Allocator, record: bool) -> bool:
    """Free a block while another stream still reads it, allocate its size again and overwrite the new block."""
    owner, reader = allotment.Stream(allocator), allotment.Stream(allocator)
    gate = threading.Event()
    seen: list[bool] = []
    block = allocator.malloc(SIZE, owner)
    array_at(block).fill(1)
    reader.submit(gate.wait)  # the reader is late
    reader.submit(lambda: seen.append(bool((array_at(block) == 1).all())))
    if record:
        allocator.record_stream(block, reader)
    allocator.free(block)
    other = allocator.malloc(SIZE, owner)
    owner.submit(array_at(other).fill, 2)
    owner.synchronize()
    gate.set()
    reader.synchronize()
    allocator.free(other)
    allocator.inspection.check_invariants()
    owner.destroy()
    reader.destroy()
    return seen[0]


@pytest.mark.threads
def test_memory_read_by_another_stream_is_not_reused_when_recorded() -> None:
    allocator = allotment.Allocator("host")
    assert all(reader_sees_what_was_written(allocator, record=True) for _ in range(RUNS))


@pytest.mark.threads
def test_without_record_stream_the_same_program_is_corrupted() -> None:
    allocator = allotment.Allocator("host")
    assert not any(reader_sees_what_was_written(allocator, record=False) for _ in range(RUNS))


@pytest.mark.threads
def test_a_block_comes_back_once_the_recorded_stream_is_done() -> None:
    allocator = allotment.Allocator("host")
    stream = allotment.Stream(allocator)
    gate = threading.Event()
    block = allocator.malloc(SIZE)
    stream.submit(gate.wait)
    allocator.record_stream(block, stream)
    allocator.free(block)
    assert allocator.malloc(SIZE) != block
    gate.set()
    stream.synchronize()
    assert allocator.malloc(SIZE) == block
