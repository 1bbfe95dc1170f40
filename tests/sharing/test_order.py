"""The importer's stream waits for the work of the owner's stream, and the block's return for the importer's work."""

import threading

import pytest

from allotment import Allocator, CaptureError, SimulatedDevice, Stream, open_shared
from allotment._sharing import ordering
from helpers.effort import some
from helpers.peer import Peer, wait_until

MIB = 1 << 20
ROUNDS = 100
SETTINGS = {
    "plain": "shareable:True",
    "expandable": "shareable:True,expandable_segments:True",
    "dense": "shareable:True,placement:dense",
}
pytestmark = pytest.mark.threads


@pytest.fixture(params=SETTINGS)
def allocator(request):
    made = Allocator("host", settings=SETTINGS[request.param])
    yield made
    made.inspection.check_invariants()


OPENING = """
from allotment._devices.host.device import HostDevice
from allotment._sharing import importer, ordering
stream, seen = Stream(HostDevice(shareable=True)), []
def write(view, value):
    view[:] = bytes([value]) * len(view)
"""


@pytest.fixture(scope="module")
def peers():
    with Peer() as one:
        one.run(OPENING)
        yield one


@pytest.fixture
def peer(peers):
    yield peers
    peers.run("stream.synchronize(); buffer = view = None")


def round_trip(allocator, stream, peer, buffer, value, *, reads_early=False):
    """The owner's stream writes behind a gate; return what the importer's stream, also busy, reads and writes back."""
    view = memoryview(buffer)
    gate = threading.Event()
    stream.submit(gate.wait)
    stream.submit(view.__setitem__, slice(None), bytes([value]) * len(buffer))
    handle = allocator.share(buffer)
    peer.run(
        """
        gate = threading.Event()
        stream.submit(gate.wait)
        buffer = open_shared(handle, stream=stream)
        view = memoryview(buffer)
        stream.submit(lambda view=view: seen.append(set(bytes(view))))
        stream.submit(write, view, value + 1)
        gate.set()
        del view
        """,
        handle=handle,
        value=value,
    )
    if reads_early:
        peer.run("stream.synchronize()")
    gate.set()
    seen = peer.run("stream.synchronize(); result = seen.pop(); buffer = None")
    stream.synchronize()
    handle.close()
    return seen, set(bytes(view))


def test_with_streams_busy_on_both_sides_the_importer_reads_what_the_owner_wrote(allocator, peer):
    stream = Stream(allocator)
    buffer = allocator.empty(MIB // 4, stream)
    for number in range(some(ROUNDS)):
        value = 2 * number % 256
        assert round_trip(allocator, stream, peer, buffer, value) == ({value}, {value + 1})


def test_without_the_event_it_reads_too_early(allocator, peer):
    """Checks the test above: that it would notice."""
    peer.run("kept, ordering.wait = ordering.wait, lambda *given, on_stream: None")
    try:
        stream = Stream(allocator)
        buffer = allocator.empty(MIB, stream)
        memoryview(buffer)[:] = bytes([99]) * MIB
        seen, after = round_trip(allocator, stream, peer, buffer, 4, reads_early=True)
        assert seen == {99}
        assert after == {4}
    finally:
        peer.run("ordering.wait = kept")


def freed_while_the_importer_writes(allocator, peer, size):
    """A block that was freed, and that the importer has closed while its own work is still queued."""
    buffer = allocator.empty(size)
    address = buffer.address
    handle = allocator.share(buffer)
    peer.run(
        """
        gate = threading.Event()
        buffer = open_shared(handle, stream=stream)
        stream.submit(gate.wait)
        stream.submit(ctypes.memset, buffer.address, 5, len(buffer))
        buffer.close()
        """,
        handle=handle,
    )
    handle.close()
    buffer.close()
    return address


def test_a_block_comes_back_when_the_importers_streams_are_done(allocator, peer):
    for _ in range(some(ROUNDS)):
        address = freed_while_the_importer_writes(allocator, peer, MIB)
        peer.run("open_shared(handle).close()", handle=allocator.share(other := allocator.empty(512)))
        assert allocator.stats()["active_bytes.all.current"] > MIB // 2
        taken = [allocator.malloc(MIB) for _ in range(3)]
        assert address not in taken
        for one in taken:
            allocator.free(one)
        peer.run("gate.set(); stream.synchronize()")
        allocator.share(other).close()
        other.close()
        wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)


def test_without_waiting_for_the_importers_streams_it_comes_back_too_early(allocator):
    """Checks the test above: that it would notice."""
    with Peer() as peer:
        peer.run(OPENING)
        peer.run("importer.Opened._events = lambda self: []")
        freed_while_the_importer_writes(allocator, peer, MIB)
        wait_until(lambda: allocator.stats()["active_bytes.all.current"] == 0)
        peer.kill()  # its stream would write to unmapped memory


def test_a_stream_that_is_recorded_there_is_waited_for_too():
    allocator = Allocator("host", settings="shareable:True")
    with Peer() as peer:
        buffer = allocator.empty(MIB)
        handle = allocator.share(buffer)
        peer.run(
            """
            from allotment._devices.host.device import HostDevice
            device = HostDevice(shareable=True)
            stream, other, gate = Stream(device), Stream(device), threading.Event()
            buffer = open_shared(handle, stream=stream)
            other.submit(gate.wait)
            buffer.record_stream(other)
            buffer.close()
            with allotment.open_shared(again): pass
            """,
            handle=handle,
            again=allocator.share(allocator.empty(512)),
        )
        handle.close()
        buffer.close()
        assert allocator.stats()["active_bytes.all.current"] >= MIB
        peer.run("gate.set()")
        wait_until(lambda: allocator.stats()["active_bytes.all.current"] < MIB)


def test_an_opener_without_a_stream_waits_itself_and_no_longer_than_the_owner_lives(monkeypatch):
    waits, wait = threading.Event(), ordering._wait_for_end
    monkeypatch.setattr(ordering, "_wait_for_end", lambda descriptor: (waits.set(), wait(descriptor)))
    with Peer() as owner:
        handle = owner.run(
            """
            allocator = Allocator("host", settings="shareable:True")
            stream, gate = Stream(allocator), threading.Event()
            buffer = allocator.empty(100, stream)
            stream.submit(gate.wait)
            result = allocator.share(buffer)
            """
        )
        opened = []
        thread = threading.Thread(target=lambda: opened.append(open_shared(handle)))
        thread.start()
        assert waits.wait(60)
        assert thread.is_alive()
        owner.kill()
        thread.join(60)
        assert len(opened) == 1


def test_the_opener_waits_for_a_simulated_streams_work():
    with Peer() as owner:
        handle = owner.run(
            """
            device = SimulatedDevice("1GiB")
            allocator = Allocator(device)
            stream = Stream(device)
            buffer = allocator.empty(100, stream)
            device.launch(stream.handle)
            result = allocator.share(buffer)
            """
        )
        opened = []
        thread = threading.Thread(target=lambda: opened.append(open_shared(handle)))
        thread.start()
        has_lease = "from allotment._sharing.owner import _owner; result = [e.leases for e in _owner.entries.values()]"
        wait_until(lambda: owner.run(has_lease) == [1])
        assert thread.is_alive()
        owner.run("device.finish(stream.handle)")
        thread.join(60)
        assert opened[0].allocator.device.name == "sim:1GiB"


def test_a_block_of_a_stream_that_is_being_captured_is_not_shared():
    device = SimulatedDevice("1GiB")
    allocator = Allocator(device)
    stream = Stream(device)
    buffer = allocator.empty(100, stream)
    device.begin_capture(stream.handle)
    with pytest.raises(CaptureError, match="while the stream is being captured"):
        allocator.share(buffer)
    device.end_capture(stream.handle)
    allocator.inspection.check_invariants()
    allocator.share(buffer).close()


def test_sharing_blocks_of_a_busy_stream_costs_no_descriptor_until_they_are_opened():
    with Peer() as owner, Peer() as importer:
        handles = owner.run(
            """
            allocator = Allocator("host", settings="shareable:True")
            stream, gate = Stream(allocator), threading.Event()
            buffers = [allocator.empty(512, stream) for _ in range(50)]
            allocator.share(buffers[0])
            before = descriptors()
            stream.submit(gate.wait)
            for _ in range(3):
                result = [allocator.share(buffer) for buffer in buffers]
            assert descriptors() == before
            """
        )
        importer.run(OPENING)
        importer.run("opened = [open_shared(handle, stream=stream) for handle in handles]", handles=handles)
        owner.run("assert descriptors() > before; gate.set(); stream.synchronize()")
        importer.run("stream.synchronize(); opened.clear(); wait_until(everything_is_closed)")
        owner.run("wait_until(everything_is_closed); wait_until(lambda: descriptors() == before)")


def behind_a_gate(allocator):
    """A shared block that its stream writes once the gate opens."""
    stream, gate = Stream(allocator), threading.Event()
    buffer = allocator.empty(100, stream)
    memoryview(buffer)[:] = b"-" * 100
    stream.submit(gate.wait)
    # A view among the arguments could outlive `synchronize` by a moment, and the buffer could not be closed.
    stream.submit(lambda: memoryview(buffer).__setitem__(slice(None), b"x" * 100))
    return stream, gate, buffer, allocator.share(buffer)


def test_in_the_owners_process_too_an_opener_without_a_stream_waits_itself(allocator, monkeypatch):
    stream, gate, buffer, handle = behind_a_gate(allocator)
    wait = ordering._wait_for_end
    monkeypatch.setattr(ordering, "_wait_for_end", lambda descriptor: (gate.set(), wait(descriptor)))
    try:
        with open_shared(handle) as opened:
            assert set(bytes(memoryview(opened))) == {ord("x")}
    finally:
        gate.set()
    stream.synchronize()
    handle.close()
    buffer.close()


def test_in_the_owners_process_too_the_stream_waits_that_a_block_is_opened_on(allocator, monkeypatch):
    stream, gate, buffer, handle = behind_a_gate(allocator)
    waits, seen, wait = threading.Event(), [], ordering._wait_for_end
    monkeypatch.setattr(ordering, "_wait_for_end", lambda descriptor: (waits.set(), wait(descriptor)))
    other = Stream(allocator)
    with open_shared(handle, stream=other) as opened:
        other.submit(lambda: seen.append(set(bytes(memoryview(opened)))))
        wait_until(lambda: waits.is_set() or seen)
        gate.set()
        other.synchronize()
    assert seen == [{ord("x")}]
    stream.synchronize()
    handle.close()
    buffer.close()


def test_in_the_owners_process_too_the_device_makes_the_stream_wait():
    device = SimulatedDevice("1GiB")
    allocator = Allocator(device)
    stream, other = Stream(device), Stream(device)
    with allocator.empty(100, stream) as buffer:
        device.launch(stream.handle)
        handle = allocator.share(buffer)
        before = device.calls["stream_wait"]
        open_shared(handle, stream=stream).close()  # what it does comes later anyway
        assert device.calls["stream_wait"] == before
        open_shared(handle, stream=other).close()
        assert device.calls["stream_wait"] == before + 1
        device.finish(stream.handle)
        handle.close()
