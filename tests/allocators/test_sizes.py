"""Every call that requests memory accepts bytes, or text with a unit."""

import pytest

import allotment
from allotment.errors import SettingsError, SizeError

MIB = 1 << 20


def plugged():
    plain = allotment.Allocator("sim:1GiB")
    return allotment.PluggableAllocator(
        lambda size, device, stream: plain.malloc(size, stream),
        lambda pointer, size, device, stream: plain.free(pointer),
    )


KINDS = {
    "caching": lambda: allotment.Allocator("sim:1GiB"),
    "tenant": lambda: allotment.Allocator("sim:1GiB").tenant("me"),
    "driver pool": lambda: allotment.AsyncAllocator("sim:1GiB"),
    "pinned": lambda: allotment.PinnedAllocator("host"),
    "tight": lambda: allotment.PinnedAllocator("host", mode="tight"),
    "pluggable": plugged,
}


@pytest.fixture(params=KINDS)
def allocator(request):
    return KINDS[request.param]()


def test_a_request_takes_text_with_a_unit(allocator):
    buffer = allocator.empty("1.5MiB")
    assert buffer.size == 3 * MIB // 2
    address = allocator.malloc("2KiB")
    assert address
    allocator.free(address)


def test_a_text_without_a_unit_is_no_size(allocator):
    for call in (allocator.malloc, allocator.empty):
        with pytest.raises(SizeError, match=r"'80' has no unit.* write 80GiB or 80MiB, or 80B for bytes") as caught:
            call("80")
        assert caught.value.size == "80"
        for text in ("", "much", "-1MiB", "99999999999GiB"):
            with pytest.raises(SizeError, match="invalid size"):
                call(text)


class Drifting:
    """A size whose value changes with each query."""

    def __init__(self):
        self.size = 0

    def __index__(self):
        self.size += MIB
        return self.size


def test_a_size_is_read_once(allocator):
    assert allocator.empty(Drifting()).size == MIB
    size = Drifting()
    allocator.free(allocator.malloc(size))
    assert size.size == MIB


def test_a_plan_takes_the_same_sizes():
    allocator = allotment.Allocator("sim:100MiB")
    assert allocator.would_fit(["80MiB", ("2MiB", 5)])
    assert not allocator.would_fit(["80MiB", "40MiB"])
    with pytest.raises(SizeError, match="no unit"):
        allocator.plan(["80"])


def test_a_simulated_device_of_eighty_bytes_has_to_say_that_it_means_bytes():
    for make in (allotment.Allocator, allotment.current):
        with pytest.raises(SettingsError, match="write 80GiB"):
            make("sim:80")
    with pytest.raises(SettingsError, match="write 80GiB"):
        allotment.SimulatedDevice("80")
    assert allotment.Allocator("sim:80B").device.capacity == 80
    assert allotment.SimulatedDevice(80).name == "sim:80B"


@pytest.mark.parametrize(
    "give",
    [
        lambda allocator: setattr(allocator, "limit", "80"),
        lambda allocator: allocator.set_limit("tag", hard="80"),
        lambda allocator: setattr(allocator.pool(), "limit", "80"),
        lambda allocator: setattr(allocator.tenant("me"), "limit", "80"),
        lambda allocator: allocator.trim_to("80"),
        lambda allocator: allotment.Allocator("sim:1GiB", limit="80"),
    ],
)
def test_no_size_is_taken_for_a_few_bytes(give):
    with pytest.raises(SettingsError, match="'80' has no unit"):
        give(allotment.Allocator("sim:1GiB"))
