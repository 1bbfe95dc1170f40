"""NumPy arrays on an allocator's memory, and cached memory that is released down to a size."""

import numpy as np
import pytest

import allotment
from allotment.errors import SettingsError, UnsupportedError

MIB = 1 << 20


@pytest.fixture
def allocator():
    with allotment.Allocator("host") as made:
        yield made
        made.inspection.check_invariants()


def test_an_array_lies_in_the_allocator_and_keeps_its_block_alive(allocator):
    array = allocator.array((1024, 1024), "float32")
    assert (array.shape, array.dtype, array.flags.writeable) == ((1024, 1024), np.float32, True)
    part = array[5:7]
    del array
    assert allocator.stats()["requested_bytes.all.current"] == 4 * MIB
    part[:] = 3
    del part
    assert allocator.stats()["allocated_bytes.all.current"] == 0


def test_zeros_full_and_like_have_their_values_and_forms(allocator):
    zeros = allocator.zeros(1000, int)
    zeros[:] = 9
    del zeros
    assert not allocator.zeros(1000, int).any()
    assert (allocator.full((3, 4), 7) == np.full((3, 4), 7)).all()
    assert allocator.full(2, 1.5).dtype == np.float64
    assert allocator.full(2, 1.5, "int8").tolist() == [1, 1]
    like = allocator.like(np.ones((2, 3), "complex64"))
    assert (like.shape, like.dtype) == ((2, 3), np.complex64)


def test_an_array_of_nothing_needs_no_memory(allocator):
    assert allocator.array((3, 0)).shape == (3, 0)
    assert allocator.stats()["allocation.all.allocated"] == 0


def test_items_without_bytes_are_not_walked_through(allocator):
    assert allocator.full(1 << 59, 0, {}).shape == (1 << 59,)  # ends at once, not after years


def test_what_is_not_an_array_of_numbers_is_refused(allocator):
    with pytest.raises(TypeError, match="Python objects"):
        allocator.array(3, object)
    with pytest.raises(ValueError):
        allocator.array((-1, 2))
    with pytest.raises(UnsupportedError, match="cannot read its memory"):
        allotment.Allocator("sim:1GiB").array(3)


def test_trim_releases_what_is_cached_above_a_size(allocator):
    kept = allocator.malloc(20 * MIB)
    sizes = [30 * MIB, 40 * MIB, 50 * MIB]
    for address in [allocator.malloc(size) for size in sizes]:
        allocator.free(address)
    assert allocator.trim_to("1GiB") == 0
    gone = allocator.trim_to("100MiB")
    left = allocator.stats()["reserved_bytes.all.current"]
    assert gone == 140 * MIB - left and left <= 100 * MIB
    allocator.inspection.check_invariants()
    allocator.trim_to(0)
    assert allocator.stats()["reserved_bytes.all.current"] == 20 * MIB
    allocator.free(kept)


def test_trim_reaches_pools_without_users_too(allocator):
    allocator.free(allocator.malloc(30 * MIB))
    pool = allocator.pool()
    with pool:
        allocator.free(allocator.malloc(30 * MIB))
    del pool
    allocator.trim_to(0)
    assert allocator.stats()["reserved_bytes.all.current"] == 0


def test_trim_wants_a_size(allocator):
    with pytest.raises(SettingsError):
        allocator.trim_to("much")
