"""Buffers and arrays of host memory that no device is involved in."""

import gc
import pickle

import numpy as np
import pytest

from allotment import Buffer, cpu
from allotment.errors import AddressError, OutOfMemoryError, SizeError, UnsupportedError

KINDS = {
    "a cache": cpu.CachingAllocator,
    "a checked cache": lambda: cpu.CachingAllocator(checked=True),
    "the default allocator": lambda: cpu,
}


@pytest.fixture(params=KINDS)
def memory(request):
    return KINDS[request.param]()


def test_a_buffer_is_memory_that_numpy_sees_without_a_copy(memory):
    buffer = memory.empty(4096)
    seen = np.frombuffer(buffer, np.uint8)
    assert (seen.ctypes.data, seen.nbytes) == (buffer.address, 4096)
    seen[:] = 7
    assert bytes(buffer[:2]) == b"\x07\x07"
    assert np.shares_memory(np.from_dlpack(buffer), seen)
    assert buffer.__dlpack_device__() == (1, 0)
    assert not hasattr(buffer, "__cuda_array_interface__")


def test_an_array_has_the_shape_and_dtype_asked_for_and_keeps_its_memory(memory):
    array = memory.array((3, 5), "int16")
    assert (array.shape, array.dtype) == ((3, 5), np.int16)
    array[:] = np.arange(15).reshape(3, 5)
    row = array[1]
    del array
    gc.collect()
    assert row.tolist() == [5, 6, 7, 8, 9]
    assert memory.array(2).dtype == np.float64
    assert memory.array((0, 3)).shape == (0, 3)


def test_an_array_of_python_objects_is_refused(memory):
    with pytest.raises(TypeError, match="Python objects"):
        memory.array(3, object)


@pytest.mark.parametrize(("size", "count"), [("1MiB", 1 << 20), ("80B", 80), (np.int64(80), 80), (0, 0)])
def test_a_size_is_bytes_or_text(memory, size, count):
    assert memory.empty(size).size == count
    memory.free(memory.allocate(size))


def test_what_is_no_size_is_refused(memory):
    for call in (memory.empty, memory.allocate):
        with pytest.raises(SizeError, match="no unit"):
            call("80")
        with pytest.raises(TypeError, match="a size must be an int or text"):
            call(1.5)
        with pytest.raises(OutOfMemoryError):
            call(1 << 62)


def test_a_buffer_goes_back_to_the_cache_that_it_came_from():
    cache, other = cpu.CachingAllocator(), cpu.CachingAllocator()
    with cpu.caching(cache):
        buffer, array = cpu.empty(1000), cpu.array(1000, "uint8")
    assert buffer.allocator is cache
    with cpu.caching(other):
        del buffer, array
        gc.collect()
    assert (cache.stats()["cached_blocks"], other.cached_bytes) == (2, 0)
    cache.check_invariants()


def test_a_buffer_of_no_cache_is_freed_as_free_does():
    cache = cpu.CachingAllocator()
    buffer = cpu.empty(1000)
    with cpu.caching(cache):
        buffer.close()
    assert buffer.closed
    assert (cache.stats()["system_frees"], cache.cached_bytes) == (1, 0)


def test_freeing_a_buffer_closes_it(memory):
    buffer = memory.empty(1000)
    memory.free(buffer)
    assert buffer.closed
    with pytest.raises(AddressError, match="freed already"):
        memory.free(buffer)


def test_a_buffer_of_one_cache_is_not_freed_through_another():
    buffer = cpu.CachingAllocator().empty(1000)
    with pytest.raises(AddressError, match="belongs to another allocator"):
        cpu.CachingAllocator().free(buffer)
    assert not buffer.closed


def test_a_buffer_made_by_hand_of_a_cache_is_one_like_any_other():
    cache = cpu.CachingAllocator(checked=True)
    buffer = Buffer(cache, cache.allocate(64), 64)
    memoryview(buffer)[:] = bytes(range(64))
    assert bytes(buffer[60:]) == bytes([60, 61, 62, 63])
    assert repr(buffer).endswith("on the host, stream 0x0>")
    del buffer
    gc.collect()
    assert cache.cached_bytes == 64


@pytest.mark.parametrize("make", [cpu.CachingAllocator, lambda: cpu.empty(8).allocator], ids=["cache", "default"])
def test_an_allocator_of_host_memory_cannot_be_pickled_nor_take_a_state(make):
    with pytest.raises(TypeError, match=r"cannot pickle .* make one in the other process"):
        pickle.dumps(make())
    for name in ("__setstate__", "__setstate_cython__"):  # those that Cython writes take any object for a tuple
        with pytest.raises((AttributeError, TypeError)):
            getattr(make(), name)(5)


def test_a_buffer_cannot_be_made_of_memory_that_is_not_in_use():
    cache = cpu.CachingAllocator()
    address = cache.allocate(64)
    with pytest.raises(AddressError, match="not the start of memory in use"):
        Buffer(cache, address + 8, 8)
    with pytest.raises(SizeError, match=r"65 bytes at .* exceed the 64 bytes"):
        Buffer(cache, address, 65)
    cache.free(address)
    with pytest.raises(AddressError, match="is free already"):
        Buffer(cache, address, 64)
    plain = cpu.empty(64)
    with pytest.raises(AddressError, match=r"allotment\.cpu\.empty makes one"):
        Buffer(plain.allocator, plain.address, 64)


def test_a_buffer_whose_memory_was_freed_by_its_address_cannot_be_viewed():
    cache = cpu.CachingAllocator(checked=True)
    buffer = cache.empty(64)
    part = buffer[8:]
    assert bytes(part) == bytes(buffer)[8:]
    cache.free(buffer.address)
    for seen in (buffer, part):
        with pytest.raises(AddressError, match="is free already"):
            memoryview(seen)
    assert cache.allocate(64) == buffer.address  # so that the buffer frees it once


def test_what_a_buffer_without_a_device_cannot_do_is_said():
    buffer = cpu.CachingAllocator().empty(64)
    with pytest.raises(UnsupportedError, match="CachingAllocator does not support streams"):
        buffer.record_stream(5)
    with pytest.raises(TypeError, match="cannot pickle"):
        pickle.dumps(buffer)


def test_a_buffer_of_memory_that_nobody_knows_says_so_instead_of_failing_inside():
    class Memory:
        def free(self, address):
            pass

    buffer = Buffer(Memory(), 4096, 64)
    with pytest.raises(BufferError, match="memory of an unknown device cannot be read"):
        memoryview(buffer)
    with pytest.raises(BufferError, match="an unknown device"):
        buffer.__dlpack_device__()
    with pytest.raises(UnsupportedError, match="Memory does not support streams"):
        buffer.record_stream(5)
    assert not hasattr(buffer, "__cuda_array_interface__")
