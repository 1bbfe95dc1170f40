"""Buffers: memory that frees itself, and that other libraries see without a copy."""

from __future__ import annotations

import gc

import numpy as np
import pytest

import allotment
from allotment.errors import RequestError


def live_blocks(allocator: allotment.Allocator) -> int:
    return allocator.stats()["allocation.all.current"]


def test_a_buffer_frees_itself() -> None:
    allocator = allotment.Allocator("sim:1GiB")
    buffer = allocator.empty(1000)
    assert live_blocks(allocator) == 1
    del buffer
    assert live_blocks(allocator) == 0


def test_an_empty_buffer_is_no_block() -> None:
    allocator = allotment.Allocator("sim:1GiB")
    buffer = allocator.empty(0)
    assert (buffer.address, len(buffer), live_blocks(allocator)) == (0, 0, 0)


@pytest.mark.parametrize("view", [np.asarray, np.from_dlpack, lambda buffer: np.frombuffer(buffer, np.uint8)])
def test_numpy_sees_host_memory_without_a_copy_and_keeps_it_alive(view) -> None:  # type: ignore[no-untyped-def]
    allocator = allotment.Allocator("host")
    buffer = allocator.empty(4096)
    array = np.asarray(view(buffer)).view(np.uint8).reshape(-1)
    assert array.__array_interface__["data"][0] == buffer.address
    array[:] = 7
    assert bytes(memoryview(buffer)[:3]) == b"\x07\x07\x07"
    del buffer
    gc.collect()
    assert live_blocks(allocator) == 1
    del array
    gc.collect()
    assert live_blocks(allocator) == 0


def test_a_dlpack_capsule_that_is_never_taken_gives_its_hold_up() -> None:
    allocator = allotment.Allocator("host")
    capsule = allocator.empty(64).__dlpack__()
    assert live_blocks(allocator) == 1
    del capsule
    assert live_blocks(allocator) == 0


def test_simulated_memory_cannot_be_looked_at() -> None:
    buffer = allotment.Allocator("sim:1GiB").empty(64)
    with pytest.raises(BufferError, match="cannot be read"):
        memoryview(buffer)  # type: ignore[arg-type]
    with pytest.raises(BufferError, match="DLPack"):
        buffer.__dlpack_device__()
    assert not hasattr(buffer, "__cuda_array_interface__")


def test_a_buffer_freed_from_inside_a_callback_is_freed_when_the_allocator_is_left() -> None:
    allocator = allotment.Allocator("sim:64MiB")
    held = [allocator.empty(20 << 20), allocator.empty(20 << 20)]

    def free_held() -> bool:
        held.clear()
        return True

    allocator.limits.add_free_memory_callback(free_held)
    assert allocator.malloc(40 << 20)
    allocator.inspection.check_invariants()
    assert live_blocks(allocator) == 1


def test_a_buffer_with_more_bytes_than_a_length_can_be_says_so() -> None:
    class Any:
        device = allotment.Allocator("host").device

        def free(self, address: int) -> None:
            pass

    buffer = allotment.Buffer(Any(), 4096, 1 << 63)
    assert buffer.size == 1 << 63
    for use in (len, list, bool):
        with pytest.raises(OverflowError, match="use its `size`"):
            use(buffer)
    with pytest.raises(BufferError, match="use a slice of it"):
        memoryview(buffer)


@pytest.mark.parametrize("part", [slice(None), slice(100, 900)], ids=["whole", "slice"])
def test_in_a_garbage_cycle_finalizers_may_use_the_memory_of_a_view(part):
    in_use = []

    class Holder:
        def __del__(self):
            in_use.append(alloc.stats()["allocated_bytes.all.current"])
            self.view[:] = bytes(len(self.view))

    with allotment.Allocator("host") as alloc:
        buffer = alloc.empty(1000)  # older than the holder, so its finalizer runs first
        piece = buffer if part == slice(None) else buffer[part]
        holder = Holder()
        holder.view = memoryview(piece)
        holder.ring = holder
        del buffer, piece, holder
        gc.collect()
        assert in_use == [1024]
        assert alloc.stats()["allocated_bytes.all.current"] == 0


def test_a_buffer_that_a_finalizer_brings_back_says_that_it_was_freed():
    kept = []

    class Holder:
        def __init__(self, buffer):
            self.buffer = buffer
            self.ring = self

        def __del__(self):
            kept.append(self.buffer)

    with allotment.Allocator("host") as alloc:
        Holder(alloc.empty(1000))
        gc.collect()
        (buffer,) = kept
        with pytest.raises(RequestError, match="freed when its last reference was dropped"):
            _ = buffer.address
        alloc.inspection.check_invariants()
        assert alloc.stats()["allocated_bytes.all.current"] == 0
        del buffer
        kept.clear()
