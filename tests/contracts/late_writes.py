"""Two streams and one block, for every allocator on a GPU: a write that comes late.

An allocator runs it with a subclass in its own test file, which has fixtures `device`, `allocator` and `streams`.
"""

import pytest

MIB = 1 << 20
RUNS = 100
OLD, NEW = 7, 2  # what the first owner's late write leaves, and what the second owner writes


class LateWrites:
    @pytest.mark.parametrize("size", [4096, 2 * MIB])
    def test_memory_in_use_on_another_stream_is_not_reused(self, device, allocator, streams, size):
        for _ in range(RUNS):
            assert write_late_and_reuse(device, allocator, *streams, size, record=True) == (False, filled(NEW, size))

    @pytest.mark.parametrize("size", [4096, 2 * MIB])
    def test_a_use_that_is_not_recorded_overwrites_the_next_owner(self, device, allocator, streams, size):
        for _ in range(RUNS):
            assert write_late_and_reuse(device, allocator, *streams, size, record=False) == (True, filled(OLD, size))


def filled(value, size):
    return bytes([value]) * size


def write_late_and_reuse(device, allocator, own, side, size, record):
    """Return (whether the same memory was allocated again, what the second owner then finds in it)."""
    first = allocator.malloc(size, own)
    with device.hold(side.handle):
        own.synchronize()  # a stream-ordered pool has the memory now, for the other stream too
        device.memset_async(first, OLD, size, side.handle)
        if record:
            allocator.record_stream(first, side)
        allocator.free(first)
        second = allocator.malloc(size, own)
        device.memset_async(second, NEW, size, own.handle)
        own.synchronize()
    side.synchronize()
    found = device.copy_to_host(second, size)
    allocator.free(second)
    own.synchronize()
    return second == first, found
