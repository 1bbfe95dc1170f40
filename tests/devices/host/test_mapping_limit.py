"""At the system's limit of mappings, some mappings cannot be undone: those stay usable."""

import pytest

from helpers.child import output_of

FILL = """
    import ctypes, mmap
    import allotment

    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
    libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    SIZE = 400_000 * 4096

    def use_up_mappings():
        base = libc.mmap(None, SIZE, 3, 0x4022, -1, 0)
        at = base
        while libc.mprotect(at, 4096, 0) == 0:
            at += 8192
            assert at < base + SIZE
        return base
"""


def mapping_limit() -> int:
    with open("/proc/sys/vm/max_map_count") as file:
        return int(file.read())


needs_a_limit = pytest.mark.skipif(mapping_limit() > 300_000, reason="this system allows too many mappings to use up")


@needs_a_limit
def test_a_segment_that_cannot_be_unmapped_stays_reserved_and_is_released_later():
    printed = output_of(
        FILL
        + """
    allocator = allotment.Allocator("host")
    blocks = [allocator.malloc(30 << 20) for _ in range(3)]
    blocks.sort()
    allocator.free(blocks[1])           # the one in the middle: without it one mapping becomes two
    base = use_up_mappings()
    try:
        allocator.empty_cache()
    except allotment.DeviceError as error:
        print("munmap" in str(error))
    allocator.inspection.check_invariants()
    print(allocator.stats()["reserved_bytes.all.current"] // (30 << 20))
    libc.munmap(base, SIZE)
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    print(allocator.stats()["reserved_bytes.all.current"] // (30 << 20))
    """
    )
    assert printed.split() == ["True", "3", "2"]
