"""The engine checks every address that a device returns before it uses it."""

import pytest

from allotment import Allocator, Backend, DeviceError, UnsupportedError
from allotment._core.contract.table import Device
from helpers.child import output_of
from helpers.engine import MIB, check, on_device

EXPANDABLE = "expandable_segments:True"
TWO_TIMES = """
    import allotment

    class Repeating(allotment.Backend):
        def __init__(self):
            super().__init__(name="repeating")
            self.taken_back = []

        def allocate(self, size, stream):
            return {address}

        def free(self, address, size):
            self.taken_back.append(address)

    device = Repeating()
    allocator = allotment.Allocator(device)
    first = allocator.malloc(1000)
    try:
        allocator.malloc(30 << 20)
    except allotment.DeviceError as error:
        print(error)
    allocator.inspection.check_invariants()
    allocator.free(first)
    allocator.empty_cache()
    allocator.inspection.check_invariants()
    print(device.taken_back == [first])
"""


class Giving(Backend):
    """Returns the addresses that the test tells it to."""

    def __init__(self, *addresses):
        super().__init__(name="giving")
        self.addresses = list(addresses)
        self.taken_back = []

    def allocate(self, size, stream):
        return self.addresses.pop(0)

    def free(self, address, size):
        self.taken_back.append(address)


def test_an_address_given_twice_is_refused_and_the_first_block_stays():
    printed = output_of(TWO_TIMES.format(address=1 << 30)).splitlines()
    assert printed == [
        "repeating: allocate returned 0x40000000 for 31457280 bytes, which overlaps memory that it returned before",
        "True",
    ]


@pytest.mark.parametrize(
    ("address", "words", "goes_back"),
    [
        ((1 << 30) + MIB, "returned before", False),  # inside the first segment
        ((1 << 30) - MIB, "returned before", False),  # its end overlaps the first segment
        ((1 << 31) + 8, "not aligned", True),
        ((1 << 63) - MIB, "2\\*\\*63", True),
        (1 << 63, "2\\*\\*63", True),
    ],
)
@pytest.mark.parametrize("caching", [True, False])
def test_an_address_that_cannot_be_is_refused_by_name(address, words, goes_back, caching):
    device = Giving(1 << 30, address, 1 << 33)
    allocator = Allocator(device)
    first = allocator.malloc(1000)
    allocator.pools.caching = caching
    with pytest.raises(DeviceError, match=f"giving: allocate returned {address:#x} for .*{words}"):
        allocator.malloc(30 * MIB)
    assert device.taken_back == [address] * goes_back
    check(allocator)
    second = allocator.malloc(30 * MIB)
    check(allocator)
    allocator.free(second)
    allocator.free(first)
    check(allocator)


def test_memory_past_the_cache_is_not_given_a_second_time():
    allocator = Allocator(Giving(1 << 30, 1 << 30))
    allocator.pools.caching = False
    first = allocator.malloc(1000)
    with pytest.raises(DeviceError, match="returned before"):
        allocator.malloc(1000)
    allocator.pools.caching = True
    allocator.free(first)
    check(allocator)


class Scripted:
    def __init__(self, *addresses):
        self.addresses = list(addresses)

    def reserve(self, size, stream):
        return self.addresses.pop(0)


@pytest.mark.parametrize(("base", "words"), [(1 << 40, "returned before"), ((1 << 50) + 4096, "not aligned")])
def test_addresses_that_cannot_be_reserved_are_refused(base, words):
    from allotment._devices.simulated.device import SimulatedDevice

    allocator = Allocator(SimulatedDevice(1 << 30, script=Scripted(1 << 40, base, 1 << 45)), settings=EXPANDABLE)
    first = allocator.malloc(1000)
    with pytest.raises(DeviceError, match=f"range_reserve returned {base:#x} .*{words}"):
        allocator.malloc(1000, 7)
    check(allocator)
    second = allocator.malloc(1000, 7)
    assert {first, second} == {1 << 40, 1 << 45}
    check(allocator)


class Lending:
    def allocate(self, size, stream):
        return 1 << 50

    def free(self, address, size, stream):
        raise AssertionError("what is given twice cannot go back")


def test_memory_that_a_pools_allocator_gives_twice_is_refused():
    allocator = on_device()
    with allocator.pool(allocator=Lending()):
        allocator.malloc(1000)
        with pytest.raises(DeviceError, match="returned before"):
            allocator.malloc(30 * MIB)
        check(allocator)


def test_a_device_without_memory_operations_is_refused_by_an_allocator():
    printed = output_of("""
        import allotment
        device = allotment.PluggableAllocator(lambda *given: 0, lambda *given: None).device
        try:
            allotment.Allocator(device).malloc(1)
        except allotment.UnsupportedError as error:
            print("refused")
    """)
    assert printed == "refused\n"
    with pytest.raises(UnsupportedError, match="segment_allocate"):
        Allocator(Device())
