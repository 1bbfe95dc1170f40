"""`copy` checks its arguments as far as they are known: a mistake raises an error and does not end the process."""

import numpy as np
import pytest

from allotment import AddressError, Allocator, PluggableAllocator, SizeError, Stream, make_allocator
from allotment._allocators.pinned.allocator import PinnedAllocator
from helpers.child import output_of
from helpers.engine import check, on_device

pytestmark = pytest.mark.threads


def plug():
    memory = {}

    def alloc(size, device, stream):
        block = np.zeros(max(size, 1), np.uint8)
        memory[block.ctypes.data] = block
        return block.ctypes.data

    return PluggableAllocator(alloc, lambda address, *_: memory.pop(address), device="host")


MAKERS = {
    "host": lambda: Allocator("host"),
    "host, expandable": lambda: Allocator("host", settings="expandable_segments:True"),
    "host, dense": lambda: Allocator("host", settings="placement:dense"),
    "simulated": lambda: Allocator("sim:1GiB"),
    "stream-ordered": lambda: make_allocator("sim:1GiB", settings="backend:cudaMallocAsync"),
    "pluggable": plug,
}
SIZE = 4096


@pytest.fixture(params=MAKERS)
def alloc(request):
    return MAKERS[request.param]()


def is_host(alloc):
    return alloc.device.family == "host"


def test_more_than_a_buffer_has_is_refused(alloc):
    small, large = alloc.empty(10), alloc.empty(SIZE)
    for destination, source in ((small, large), (large, small)):
        with pytest.raises(SizeError, match="more than <Buffer of 10 bytes"):
            alloc.copy(destination, source, 2048)
    alloc.copy(small, large, 10)
    Stream.default(alloc).synchronize()  # a plug-in's memory is freed at once


def test_more_than_a_block_has_is_refused(alloc):
    small, large = alloc.malloc(10), alloc.malloc(SIZE)
    for destination, source in ((small, large), (large, small)):
        with pytest.raises(SizeError, match="exceed its block"):
            alloc.copy(destination, source, 2048)
    for size in (1 << 40, (1 << 64) - 1):
        with pytest.raises(SizeError):
            alloc.copy(large, large, size)
    alloc.copy(small, large, 10)
    Stream.default(alloc).synchronize()
    alloc.free(small)
    alloc.free(large)


def test_an_address_in_the_middle_of_a_block_is_one_of_its(alloc):
    block, other = alloc.malloc(SIZE), alloc.malloc(SIZE)
    alloc.copy(block + 1000, other + 96, SIZE - 1000)
    with pytest.raises(SizeError):
        alloc.copy(block + 1000, other, SIZE - 999)
    Stream.default(alloc).synchronize()


def test_no_memory_is_at_address_0(alloc):
    block = alloc.malloc(SIZE)
    for destination, source in ((0, block), (block, 0), (0, 0), (alloc.empty(0), block)):
        with pytest.raises((AddressError, SizeError)):
            alloc.copy(destination, source, 10)
    alloc.copy(0, 0, 0)
    alloc.copy(block, block, 0)


@pytest.mark.parametrize("kind", ["host", "host, expandable", "simulated"])
def test_memory_that_is_free_is_refused(kind):
    alloc = MAKERS[kind]()
    block, freed = alloc.malloc(SIZE), alloc.malloc(SIZE)
    alloc.free(freed)
    with pytest.raises(AddressError, match="not in a live block"):
        alloc.copy(freed, block, 10)
    with pytest.raises(AddressError, match="not in a live block"):
        alloc.copy(block, block + (1 << 20), 10)
    check(alloc)


def test_an_address_that_nobody_knows_is_refused_on_host_memory(alloc):
    block = alloc.malloc(SIZE)
    if not is_host(alloc):
        alloc.copy(block, 0x1000, 10)  # the device refuses it
        return
    with pytest.raises(AddressError, match="pass the object that has it"):
        alloc.copy(block, 0x1000, 10)


def test_memory_of_another_allocator_on_the_device_is_known():
    alloc = Allocator("host")
    other, plugged = Allocator(alloc.device), PluggableAllocator(lambda *_: held, print, device=alloc.device)
    memory = np.arange(100, dtype=np.uint8)
    held = memory.ctypes.data
    block, source, lent = alloc.empty(100), other.malloc(100), plugged.malloc(100)
    alloc.copy(block, lent, 100)
    alloc.copy(source, block, 100)
    Stream.default(alloc).synchronize()
    assert np.asarray(block).tolist() == memory.tolist()
    for unsure in (source + 50, lent + 50):
        with pytest.raises(SizeError):
            alloc.copy(block, unsure, 1000)
    other.free(source)


def test_pinned_memory_is_known():
    alloc = Allocator("host")
    pinned = PinnedAllocator(alloc)
    address, block = pinned.malloc(1000), alloc.empty(1000)
    alloc.copy(address + 500, block, 500)
    with pytest.raises(SizeError):
        alloc.copy(address + 500, block, 600)
    Stream.default(alloc).synchronize()
    pinned.free(address)


def test_an_array_is_copied_from_and_to_and_kept_until_that_is_done():
    alloc = Allocator("host")
    stream = Stream(alloc)
    block = alloc.empty(1000)
    result = np.zeros(1000, np.uint8)
    alloc.copy(block, np.arange(1000, dtype=np.uint8), 1000, stream)  # the array is dropped before the copy is done
    alloc.copy(result, block, 1000, stream)
    stream.synchronize()
    assert result.tolist() == np.arange(1000, dtype=np.uint8).tolist()
    for wrong in (np.zeros(999, np.uint8), b"short"):
        with pytest.raises(SizeError):
            alloc.copy(block, wrong, 1000)
    for wrong in (bytes(1000), np.zeros(2000, np.uint8)[::2]):
        with pytest.raises(BufferError):
            alloc.copy(wrong, block, 1000)


def test_a_buffer_of_another_allocator_is_checked_by_that():
    alloc, other = Allocator("host"), on_device()
    block, foreign = alloc.empty(1000), alloc.empty(10)
    with pytest.raises(SizeError):
        other.copy(foreign, block, 11)


def test_wrong_sizes_and_addresses_do_not_end_the_process():
    printed = output_of("""
        import allotment

        allocator = allotment.Allocator("host")
        stream = allotment.Stream(allocator)
        small, large = allocator.empty(10), allocator.empty(4096)
        x, y = allocator.malloc(100), allocator.malloc(100)
        for arguments in ((small, large, 2048), (x, y, 1 << 40), (0, 0, 10), (y, 1, 1), (1 << 63, x, 1),
                          ((1 << 64) - 1, x, 2), (x, y, 2 ** 64 - 1), (x + 511, y, 2)):
            try:
                allocator.copy(*arguments, stream)
            except allotment.RequestError as error:
                print(type(error).__name__)
        stream.synchronize()
        allocator.inspection.check_invariants()
    """)
    assert printed.split() == [
        *("SizeError", "SizeError", "AddressError", "AddressError"),
        *("AddressError", "AddressError", "SizeError", "SizeError"),
    ]
