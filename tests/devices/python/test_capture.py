"""`allotment.capture` on a device written in Python: it needs only the contract's capture operations."""

import pytest

import allotment
from allotment.errors import CaptureError, StreamError, UnsupportedError
from helpers.queue_device import QueueDevice

SIZE = 1 << 20


class Tape(QueueDevice):
    """Captured work is steps on a tape, which a graph runs again: `done` lists the steps that have run."""

    def __init__(self):
        super().__init__()
        self.done = []
        self._steps = {}
        self._tapes = {}

    def step(self, stream, text):
        """Work on a stream."""
        self.launch(stream)
        capture = self.capture_status(stream)
        (self._steps.setdefault(capture, []) if capture else self.done).append(text)

    def capture_end(self, stream):
        capture = self.capture_status(stream)
        graph = super().capture_end(stream)
        self._tapes[graph] = self._steps.pop(capture, [])
        return graph

    def graph_launch(self, graph, stream):
        super().graph_launch(graph, stream)
        self.done += self._tapes[graph]

    def graph_destroy(self, graph):
        super().graph_destroy(graph)
        del self._tapes[graph]

    @property
    def graphs(self):
        return set(self._tapes)


@pytest.fixture
def device():
    return Tape()


@pytest.fixture
def allocator(device):
    allocator = allotment.Allocator(device)
    yield allocator
    allocator.inspection.check_invariants()


@pytest.fixture
def stream(allocator):
    return allotment.Stream(allocator)


def test_captured_work_runs_at_each_replay_and_not_before(device, allocator, stream):
    with allotment.capture(stream) as graph:
        device.step(stream.handle, "first")
        device.step(stream.handle, "second")
    assert device.done == []
    graph.replay()
    graph.replay(allotment.Stream(allocator))
    assert device.done == ["first", "second"] * 2
    assert device.launched[0][1] == stream.handle


def test_memory_of_a_capture_is_only_the_graphs(device, allocator, stream):
    before = allocator.malloc(SIZE, stream)
    allocator.free(before)
    with allotment.capture(stream) as graph:
        inside = allocator.malloc(SIZE, stream)
        allocator.inspection.check_invariants()
        allocator.free(inside)
        assert allocator.malloc(SIZE, stream) == inside
        allocator.free(inside)
    assert inside != before
    assert allocator.malloc(SIZE, stream) == before
    graph.reset()
    allocator.free(before)


def test_a_stream_that_joins_is_served_from_the_graphs_pool_too(device, allocator, stream):
    other = allotment.Stream(allocator)
    outside = allocator.malloc(SIZE, other)
    allocator.free(outside)
    with allotment.capture(stream):
        other.wait(stream.record())
        inside = allocator.malloc(SIZE, other)
        stream.wait(other.record())
        allocator.free(inside)
    assert inside != outside


def test_a_reset_releases_graph_and_memory(device, allocator, stream):
    with allotment.capture(stream) as graph:
        allocator.free(allocator.malloc(SIZE, stream))
    assert len(device.graphs) == 1
    graph.reset()
    assert device.graphs == set()
    assert allocator.stats()["reserved_bytes.all.current"] == 0
    with pytest.raises(CaptureError, match="nothing to replay"):
        graph.replay()


def test_an_abandoned_capture_leaves_nothing_behind(device, allocator, stream):
    with pytest.raises(KeyError), allotment.capture(stream):
        allocator.free(allocator.malloc(SIZE, stream))
        raise KeyError("changed my mind")
    assert device.capture_status(stream.handle) == 0
    assert device.graphs == set()
    assert allocator.stats()["reserved_bytes.all.current"] == 0


def test_what_a_method_raises_at_the_end_is_the_cause_of_the_error(device, allocator, stream):
    def broken(stream):
        raise OSError("the tape is torn")

    with pytest.raises(CaptureError, match="the tape is torn") as caught, allotment.capture(stream):
        device.capture_end = broken
    assert isinstance(caught.value.__cause__.__cause__, OSError)
    del device.capture_end


def test_a_graph_is_not_replayed_on_a_destroyed_stream(device, allocator, stream):
    with allotment.capture(stream) as graph:
        device.step(stream.handle, "work")
    stream.destroy()
    with pytest.raises(StreamError):
        graph.replay()
    graph.replay(allotment.Stream.default(allocator))
    assert device.done == ["work"]


def test_a_device_without_the_operations_says_which_one_it_lacks():
    class Plain(QueueDevice):
        capture_begin = capture_end = capture_status = capture_terminals = None
        node_predecessors = capture_relaxed = graph_launch = graph_destroy = None

    allocator = allotment.Allocator(Plain())
    with (
        pytest.raises(UnsupportedError, match="queue does not support capture_begin"),
        allotment.capture(allotment.Stream(allocator)),
    ):
        pass
    allocator.inspection.check_invariants()
