"""Memory that a destroyed stream used: the stream's work is still done, and the memory waits for it."""

from __future__ import annotations

import threading

import pytest

import allotment
from allotment._allocators.pinned.allocator import PinnedAllocator
from helpers.child import output_of
from helpers.forked import goes_well_in_child

pytestmark = pytest.mark.threads


@pytest.fixture
def allocator() -> allotment.Allocator:
    return allotment.Allocator("host")


def destroyed_reader(allocator: allotment.Allocator, address: int, gate: threading.Event) -> None:
    """A stream that reads the block when the gate opens; its owner has destroyed it by then."""
    reader = allotment.Stream(allocator)
    reader.submit(gate.wait)
    allocator.record_stream(address, reader)
    reader.destroy()


def test_a_block_is_reused_when_its_destroyed_reader_is_done_and_not_before(allocator):
    gate = threading.Event()
    address = allocator.malloc(1 << 20)
    destroyed_reader(allocator, address, gate)
    allocator.free(address)
    allocator.inspection.check_invariants()
    other = allocator.malloc(1 << 20)
    assert other != address
    gate.set()
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    assert allocator.malloc(1 << 20) == address
    allocator.inspection.check_invariants()


def test_a_block_is_not_reused_early_when_another_stream_has_its_readers_place(allocator):
    gate = threading.Event()
    address = allocator.malloc(1 << 20)
    destroyed_reader(allocator, address, gate)
    second = allotment.Stream(allocator)
    allocator.free(address)
    assert allocator.malloc(1 << 20) != address
    gate.set()
    second.synchronize()
    allocator.inspection.check_invariants()


def test_a_capture_of_others_is_not_spoilt(allocator):
    gate = threading.Event()
    address, large = allocator.malloc(1 << 20), allocator.malloc(30 << 20)
    destroyed_reader(allocator, address, gate)
    captured = allotment.Stream(allocator)
    with allotment.capture(captured, allocator=allocator) as graph:
        captured.submit(int)
        allocator.free(address)
        allocator.free(large)
        gate.set()
    graph.replay()
    captured.synchronize()
    allocator.empty_cache()
    allocator.inspection.check_invariants()


def test_a_buffer_is_freed_without_a_message():
    assert (
        output_of("""
        import allotment
        allocator = allotment.Allocator("host")
        stream = allotment.Stream(allocator)
        buffer = allocator.empty(1000)
        allocator.record_stream(buffer, stream)
        stream.destroy()
        del buffer
        print(allocator.stats()["allocation.all.current"])
    """)
        == "0\n"
    )


def test_pinned_memory_is_reused_when_its_destroyed_reader_is_done_and_not_before(allocator):
    gate = threading.Event()
    pool = PinnedAllocator(allocator)
    address = pool.malloc(1 << 20)
    reader = allotment.Stream(allocator)
    handle = reader.handle
    reader.submit(gate.wait)
    reader.destroy()
    pool.free(address, [handle])
    assert pool.malloc(1 << 20) != address
    gate.set()
    del pool  # waits for the reader


def test_a_child_frees_what_its_parents_streams_used(allocator):
    stream = allotment.Stream(allocator)
    address = allocator.malloc(1 << 20)
    allocator.record_stream(address, stream)

    def free_and_reuse() -> None:
        allocator.free(address)
        assert allocator.malloc(1 << 20) == address
        allocator.inspection.check_invariants()

    assert goes_well_in_child(free_and_reuse)
