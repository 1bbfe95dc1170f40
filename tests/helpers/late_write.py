"""Two streams and one block: a write that comes late, from a stream that nobody may have told the allocator of."""


def filled(value, size):
    return bytes([value]) * size


def write_late_and_reuse(device, allocator, own, side, size, record):
    """(whether the same memory came back, what the second owner then finds in it)"""
    first = allocator.malloc(size, own)
    with device.hold(side.handle):
        own.synchronize()  # a stream-ordered pool has the memory there now, for the other stream too
        device.memset_async(first, 7, size, side.handle)
        if record:
            allocator.record_stream(first, side)
        allocator.free(first)
        second = allocator.malloc(size, own)
        device.memset_async(second, 2, size, own.handle)
        own.synchronize()
    side.synchronize()
    found = device.copy_to_host(second, size)
    allocator.free(second)
    own.synchronize()
    return second == first, found
