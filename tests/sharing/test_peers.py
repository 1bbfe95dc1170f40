"""Devices with access to a device's memory also get access to other processes' memory opened there, in either order."""

import gc

import pytest

from allotment import Allocator, RequestError, SimulatedDevice, Stream, make_allocator, open_shared
from helpers.peer import Peer, everything_is_closed, wait_until

CAPACITY = "3GiB"  # used by no other test: opened memory belongs to a device's name
SETTINGS = {"expandable": "expandable_segments:True", "dense": "placement:dense"}


@pytest.fixture
def owner():
    with Peer() as one:
        yield one


def shared_by(owner, settings):
    return owner.run(
        """
        allocator = Allocator(SimulatedDevice(capacity), settings=settings)
        buffers = [allocator.empty(45 << 20) for _ in range(2)]
        result = [allocator.share(buffer) for buffer in buffers]
        """,
        capacity=CAPACITY,
        settings=settings,
    )


@pytest.mark.parametrize("kind", SETTINGS)
def test_what_is_opened_before_and_after_is_opened_to_peers(owner, kind):
    before, after = shared_by(owner, SETTINGS[kind])
    device, peer = SimulatedDevice(CAPACITY), SimulatedDevice("1GiB", 1)
    allocator = Allocator(device)  # without memory of its own: every call is for opened memory
    stream = Stream(device)

    def accesses(step):
        calls = device.calls["set_access"]
        kept = step()
        return device.calls["set_access"] - calls, kept

    alone, first = accesses(lambda: open_shared(before, stream=stream))
    assert alone == 1
    assert accesses(lambda: allocator.sharing.enable_peer_access(peer.index))[0] == 1
    assert accesses(lambda: allocator.sharing.enable_peer_access(peer.index))[0] == 0
    assert accesses(lambda: Allocator(device).sharing.enable_peer_access(peer.index))[0] == 0
    with_peer, second = accesses(lambda: open_shared(after, stream=stream))
    assert with_peer == 2
    first.close()
    second.close()
    wait_until(everything_is_closed)
    assert device.calls["unmap"] == device.calls["map"]


def test_a_peer_that_could_not_be_let_in_can_be_let_in_later(owner):
    handle, _ = shared_by(owner, SETTINGS["expandable"])
    device, peer = SimulatedDevice(CAPACITY), SimulatedDevice("1GiB", 2)
    allocator = Allocator(device)
    with open_shared(handle, stream=Stream(device)):
        device.refuse("set_access")
        with pytest.raises(Exception, match="set_access"):
            allocator.sharing.enable_peer_access(peer.index)
        calls = device.calls["set_access"]
        allocator.sharing.enable_peer_access(peer.index)
        assert device.calls["set_access"] == calls + 1
    wait_until(everything_is_closed)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "backend:cudaMallocAsync"])
def test_an_index_that_no_device_has_is_refused(settings):
    allocator = make_allocator("sim:1GiB", settings=settings)
    with pytest.raises(RequestError, match=r"sim:1GiB has no peer of index 40000"):
        allocator.sharing.enable_peer_access(40000)
    other = SimulatedDevice("1GiB", 40000)
    allocator.sharing.enable_peer_access(other.index)
    del other
    gc.collect()
    with pytest.raises(RequestError):
        make_allocator("sim:1GiB", settings=settings).sharing.enable_peer_access(40000)


@pytest.mark.parametrize("settings", ["", "expandable_segments:True", "placement:dense", "backend:cudaMallocAsync"])
def test_a_devices_own_index_changes_nothing(settings):
    allocator = make_allocator("sim:1GiB", settings=settings)

    def calls_of_a_request():
        before = allocator.device.calls
        allocator.free(allocator.malloc(30 << 20))
        allocator.empty_cache()
        return {name: count - before[name] for name, count in allocator.device.calls.items()}

    calls_of_a_request()  # dense placement serves the first memory of a program in larger chunks
    alone = calls_of_a_request()
    before = allocator.device.calls
    allocator.sharing.enable_peer_access(allocator.device.index)
    assert allocator.device.calls == before
    assert calls_of_a_request() == alone
