"""Capture of host streams: which calls become nodes, which invalidate a capture, what a graph does."""

import ctypes
import gc
import threading
import weakref

import pytest

from allotment._core.contract.probe import Probe, Status, StatusError
from allotment._devices.host.device import HostDevice, HostGraph
from allotment._devices.streams import Stream
from allotment.errors import DeviceError, StreamError

pytestmark = pytest.mark.threads

SIZE = 1 << 20


@pytest.fixture
def device():
    return HostDevice()


@pytest.fixture
def stream(device):
    return Stream(device)


@pytest.fixture
def other(device):
    return Stream(device)


@pytest.fixture
def probe(device):
    return Probe(device)


def refusal(call, *arguments):
    with pytest.raises(StatusError) as caught:
        call(*arguments)
    assert caught.value.text
    return caught.value.status


def test_captured_functions_run_when_the_graph_is_replayed_and_not_before(device, stream):
    done = []
    device.begin_capture(stream)
    stream.submit(done.append, 1)
    stream.submit(done.append, 2)
    graph = device.end_capture(stream)
    stream.synchronize()
    assert done == []
    assert graph.node_count == 2
    for _ in range(3):
        graph.replay(stream)
    stream.synchronize()
    assert done == [1, 2] * 3


def test_captured_copies_are_made_at_each_replay(device, stream, probe):
    source, destination = (probe.segment_allocate(SIZE) for _ in range(2))
    ctypes.memset(source, 1, SIZE)
    device.begin_capture(stream)
    probe.copy(destination, source, SIZE, 0, 0, stream.handle)
    graph = device.end_capture(stream)
    for value in (1, 2):
        ctypes.memset(source, value, SIZE)
        graph.replay(stream)
        stream.synchronize()
        assert ctypes.string_at(destination, SIZE) == bytes([value]) * SIZE
    for address in (source, destination):
        probe.segment_free(address, SIZE)


def test_a_forked_capture_is_replayed_in_an_order_that_dependencies_allow(device, stream, other):
    done = []
    device.begin_capture(stream)
    stream.submit(done.append, "first")
    other.wait(stream.record())
    other.submit(done.append, "beside")
    stream.submit(done.append, "second")
    stream.wait(other.record())
    stream.submit(done.append, "last")
    graph = device.end_capture(stream)
    graph.replay(Stream.default(device))
    Stream.default(device).synchronize()
    assert done[0] == "first"
    assert sorted(done[1:3]) == ["beside", "second"]
    assert done[3] == "last"


def test_after_the_end_all_streams_that_joined_are_ordinary_again(device, stream, other, probe):
    done = []
    device.begin_capture(stream)
    other.wait(stream.record())
    stream.wait(other.record())
    device.end_capture(stream)
    for each in (stream, other):
        assert probe.capture_status(each.handle) == 0
        assert probe.capture_terminals(each.handle) == ()
        each.submit(done.append, 1)
        each.synchronize()
    assert done == [1, 1]


def test_a_join_of_many_streams_is_a_node_with_many_predecessors(device, stream, probe):
    others = [Stream(device) for _ in range(40)]
    device.begin_capture(stream)
    stream.submit(int)
    start = stream.record()
    for each in others:
        each.wait(start)
        each.submit(int)
        stream.wait(each.record())
        stream.wait(each.record())  # a second wait for the same event adds nothing
    assert len(probe.capture_terminals(stream.handle)) == 41
    stream.submit(int)
    (last,) = probe.capture_terminals(stream.handle)
    assert len(set(probe.node_predecessors(last))) == len(probe.node_predecessors(last)) == 41
    assert device.end_capture(stream).node_count == 42


def test_a_stream_that_joined_and_did_not_come_back_fails_the_capture(device, stream, other, probe):
    kept = threading.Event()  # an object that a weak reference can watch
    watched = weakref.ref(kept)
    device.begin_capture(stream)
    stream.submit(kept.set)
    other.wait(stream.record())
    other.submit(int)
    kept = None
    with pytest.raises(DeviceError, match="not joined back"):
        device.end_capture(stream)
    assert watched() is None, "what the capture held is let go"
    assert probe.capture_status(stream.handle) == probe.capture_status(other.handle) == 0
    device.begin_capture(stream)
    stream.submit(int)
    assert device.end_capture(stream).node_count == 1


def test_a_stream_that_joined_and_did_nothing_need_not_come_back(device, stream, other):
    device.begin_capture(stream)
    stream.submit(int)
    other.wait(stream.record())
    assert device.end_capture(stream).node_count == 1


FORBIDDEN = {
    "synchronize": lambda stream, event: stream.synchronize(),
    "query": lambda stream, event: stream.query(),
    "synchronize an event": lambda stream, event: event.synchronize(),
    "query an event": lambda stream, event: event.query(),
    "synchronize the device": lambda stream, event: Probe(stream.device).device_synchronize(),
    "wait for uncaptured work": lambda stream, event: stream.wait(busy_event(stream.device)),
}


def busy_event(device):
    outside = Stream(device)
    outside.submit(int)
    return outside.record()


@pytest.mark.parametrize("what", FORBIDDEN)
def test_a_forbidden_call_fails_and_spoils_the_capture(device, stream, probe, what):
    done = []
    capture = device.begin_capture(stream)
    stream.submit(done.append, 1)
    event = stream.record()
    with pytest.raises((DeviceError, StatusError)) as first:
        FORBIDDEN[what](stream, event)
    assert "captur" in str(first.value)
    with pytest.raises(DeviceError):
        stream.submit(done.append, 2)
    assert probe.capture_status(stream.handle) == capture
    with pytest.raises(DeviceError) as last:
        device.end_capture(stream)
    assert "captur" in str(last.value)
    assert probe.capture_status(stream.handle) == 0
    stream.submit(done.append, 3)
    stream.synchronize()
    assert done == [3]


def test_other_streams_go_on_while_one_is_captured(device, stream, other):
    done = []
    device.begin_capture(stream)
    other.submit(done.append, 1)
    other.synchronize()
    assert done == [1]
    assert other.query()
    assert device.end_capture(stream).node_count == 0


def test_two_captures_do_not_mix(device, stream, other, probe):
    first, second = device.begin_capture(stream), device.begin_capture(other)
    assert first != second
    stream.submit(int)
    other.submit(int)
    (ours,), (theirs,) = probe.capture_terminals(stream.handle), probe.capture_terminals(other.handle)
    assert ours != theirs
    with pytest.raises(DeviceError):
        stream.wait(other.record())
    for each in (stream, other):
        with pytest.raises(DeviceError):
            device.end_capture(each)


def test_a_capture_ends_on_the_stream_it_began_on(device, stream, other):
    device.begin_capture(stream)
    other.wait(stream.record())
    with pytest.raises(DeviceError, match="on which it began"):
        device.end_capture(other)
    assert device.end_capture(stream).node_count == 0


def test_a_stream_is_in_one_capture_at_a_time(device, stream):
    device.begin_capture(stream)
    with pytest.raises(DeviceError, match="already"):
        device.begin_capture(stream)
    device.end_capture(stream)


def test_nodes_are_known_while_the_capture_goes_on(device, stream, probe):
    device.begin_capture(stream)
    stream.submit(int)
    (node,) = probe.capture_terminals(stream.handle)
    assert probe.node_predecessors(node) == ()
    for wrong in (node + 1, node - 1, 0):
        assert refusal(probe.node_predecessors, wrong) == Status.INVALID
    device.end_capture(stream)
    assert refusal(probe.node_predecessors, node) == Status.INVALID
    device.begin_capture(stream)
    stream.submit(int)
    assert probe.capture_terminals(stream.handle) != (node,)
    device.end_capture(stream)


def test_an_event_of_an_ended_capture_can_be_recorded_again_but_not_used(device, stream, other, probe):
    event = probe.event_create()
    device.begin_capture(stream)
    probe.event_record(event, stream.handle)
    device.end_capture(stream)
    assert refusal(probe.event_query, event) == Status.DEVICE_ERROR
    assert refusal(probe.event_synchronize, event) == Status.DEVICE_ERROR
    assert refusal(probe.stream_wait, other.handle, event) == Status.DEVICE_ERROR
    probe.event_record(event, stream.handle)
    assert probe.event_query(event)


def test_destroying_a_stream_that_joined_spoils_the_capture(device, stream, other):
    device.begin_capture(stream)
    other.wait(stream.record())
    other.destroy()
    with pytest.raises(DeviceError, match="destroyed"):
        device.end_capture(stream)


def test_destroying_the_stream_a_capture_began_on_gives_the_capture_up(device, stream, other, probe):
    kept = threading.Event()
    watched = weakref.ref(kept)
    device.begin_capture(stream)
    stream.submit(kept.set)
    other.wait(stream.record())
    stream.destroy()
    kept = None
    assert watched() is None
    assert probe.capture_status(other.handle) == 0
    probe.device_synchronize()


def test_a_device_can_be_dropped_during_a_capture():
    device, kept = HostDevice(), threading.Event()
    watched = weakref.ref(kept)
    handle = Probe(device).stream_create()
    device.begin_capture(handle)
    device.submit(handle, kept.set)
    device = kept = None
    gc.collect()
    assert watched() is None


def test_an_exception_in_a_replay_is_the_streams_and_the_rest_is_done(device, stream, other):
    done = []
    device.begin_capture(stream)
    stream.submit(done.append, 1)
    stream.submit(done.remove, "not there")
    stream.submit(done.append, 2)
    graph = device.end_capture(stream)
    graph.replay(other)
    with pytest.raises(ValueError):
        other.synchronize()
    stream.synchronize()
    assert done == [1, 2]


def test_a_replay_takes_its_turn_on_the_stream(device, stream):
    done, gate = [], threading.Event()
    device.begin_capture(stream)
    stream.submit(done.append, "replayed")
    graph = device.end_capture(stream)
    stream.submit(gate.wait)
    graph.replay(stream)
    event = stream.record()
    stream.submit(done.append, "after")
    assert not event.query()
    gate.set()
    stream.synchronize()
    assert done == ["replayed", "after"]


def test_a_graph_can_be_replayed_inside_another_capture(device, stream):
    done = []
    device.begin_capture(stream)
    stream.submit(done.append, "inner")
    inner = device.end_capture(stream)
    device.begin_capture(stream)
    inner.replay(stream)
    inner.replay(stream)
    stream.submit(done.append, "outer")
    outer = device.end_capture(stream)
    assert outer.node_count == 3
    outer.replay(stream)
    del inner, outer
    stream.synchronize()
    assert done == ["inner", "inner", "outer"]


def test_a_graph_dropped_after_replay_is_still_done_and_then_destroyed(device, stream):
    class Target:
        def __init__(self):
            self.calls = 0

        def call(self):
            self.calls += 1

    target, gate = Target(), threading.Event()
    watched, calls = weakref.ref(target), []
    device.begin_capture(stream)
    stream.submit(target.call)
    stream.submit(lambda target=target: calls.append(target.calls))
    del target
    graph = device.end_capture(stream)
    stream.submit(gate.wait)
    graph.replay(stream)
    del graph
    assert watched() is not None
    gate.set()
    stream.submit(int)  # a worker releases its last job before it takes the next
    stream.synchronize()
    assert calls == [1]
    assert watched() is None


def test_a_graph_is_replayed_on_streams_of_its_device(device, stream):
    device.begin_capture(stream)
    graph = device.end_capture(stream)
    with pytest.raises(StreamError):
        graph.replay(Stream(HostDevice()))
    stream.destroy()
    with pytest.raises(StreamError):
        graph.replay(stream)
    graph.replay(0)


def test_graphs_come_only_from_captures():
    with pytest.raises(TypeError):
        HostGraph()


def test_a_long_capture_keeps_every_node(device, stream, probe):
    device.begin_capture(stream)
    nodes = []
    for _ in range(5000):
        stream.submit(int)
        nodes += probe.capture_terminals(stream.handle)
    assert len(set(nodes)) == 5000
    assert [probe.node_predecessors(node) for node in nodes[1:]] == [(node,) for node in nodes[:-1]]
    graph = device.end_capture(stream)
    graph.replay(stream)
    stream.synchronize()
    assert graph.node_count == 5000
