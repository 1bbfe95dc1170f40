"""The allocator of a device that everybody shares: made at first use, the same for all."""

import allotment


def test_the_shared_allocator_is_made_once():
    first = allotment.current("sim:1GiB#77")
    assert isinstance(first, allotment.Allocator)
    assert allotment.current("sim:1GiB#77") is first
