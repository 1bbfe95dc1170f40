"""Work that is captured instead of done, and graphs of it."""

from __future__ import annotations

import pytest

from allotment._core.contract.probe import Capability, Probe, Status
from allotment._core.contract.table import Device
from allotment.testing._contract.ground import Busy, Ground, need, refusal


class CaptureContract(Ground):
    """Work that is captured instead of done, and graphs of it."""

    def test_a_stream_is_in_a_capture_from_begin_to_end(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.CAPTURE)
        assert probe.capture_status(stream) == 0
        first = probe.capture_begin(stream)
        assert probe.capture_status(stream) == first != 0
        graphs = [probe.capture_end(stream)]
        assert probe.capture_status(stream) == 0
        second = probe.capture_begin(stream)
        graphs.append(probe.capture_end(stream))
        assert second != first
        assert len({0, *graphs}) == 3
        for graph in graphs:
            probe.graph_destroy(graph)

    def test_a_capture_that_was_not_begun_cannot_be_ended(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.CAPTURE)
        assert refusal(probe.capture_end, stream) in (Status.INVALID, Status.DEVICE_ERROR)
        assert probe.capture_status(stream) == 0

    def test_captured_work_is_a_chain_of_nodes(self, device: Device, probe: Probe, stream: int) -> None:
        need(probe, Capability.CAPTURE)
        probe.capture_begin(stream)
        assert probe.capture_terminals(stream) == ()
        self.launch(device, stream)
        (first,) = probe.capture_terminals(stream)
        self.launch(device, stream)
        (second,) = probe.capture_terminals(stream)
        assert second != first
        assert probe.node_predecessors(first) == ()
        assert probe.node_predecessors(second) == (first,)
        probe.graph_destroy(probe.capture_end(stream))

    def test_a_stream_that_waits_for_a_captured_event_joins_the_capture(
        self, device: Device, probe: Probe, stream: int, other_stream: int, event: int
    ) -> None:
        need(probe, Capability.CAPTURE)
        capture = probe.capture_begin(stream)
        self.launch(device, stream)
        fork = probe.capture_terminals(stream)
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        assert probe.capture_status(other_stream) == capture
        self.launch(device, other_stream)
        self.launch(device, stream)
        (ours,) = probe.capture_terminals(stream)
        (theirs,) = probe.capture_terminals(other_stream)
        assert probe.node_predecessors(ours) == probe.node_predecessors(theirs) == fork

        join = probe.event_create()
        probe.event_record(join, other_stream)
        probe.stream_wait(stream, join)
        assert set(probe.capture_terminals(stream)) == {ours, theirs}
        probe.graph_destroy(probe.capture_end(stream))
        assert probe.capture_status(other_stream) == 0

    def test_memory_can_be_allocated_in_a_relaxed_capture(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.CAPTURE)
        probe.capture_begin(stream)
        probe.capture_relaxed(True)
        address = probe.segment_allocate(self.segment_size, stream)
        probe.capture_relaxed(False)
        probe.graph_destroy(probe.capture_end(stream))
        probe.segment_free(address, self.segment_size)

    def test_a_graph_is_work_of_the_stream_that_it_is_launched_on(
        self, device: Device, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        graph = self.captured(device, probe, stream)
        finish = busy(other_stream)
        probe.graph_launch(graph, other_stream)
        probe.event_record(event, other_stream)
        assert not probe.event_query(event)
        assert probe.stream_query(stream)
        finish()
        probe.event_synchronize(event)
        probe.graph_destroy(graph)

    def test_a_graph_can_be_launched_again(self, device: Device, probe: Probe, stream: int) -> None:
        graph = self.captured(device, probe, stream)
        for _ in range(3):
            probe.graph_launch(graph, stream)
        probe.stream_synchronize(stream)
        probe.graph_destroy(graph)

    def test_a_graph_can_be_launched_inside_another_capture(self, device: Device, probe: Probe, stream: int) -> None:
        if not self.nests_graphs:
            pytest.skip("this device refuses to launch a graph on a stream that is being captured")
        graph = self.captured(device, probe, stream)
        probe.capture_begin(stream)
        probe.graph_launch(graph, stream)
        assert len(probe.capture_terminals(stream)) == 1
        outer = probe.capture_end(stream)
        assert outer not in (0, graph)
        probe.graph_launch(outer, stream)
        probe.stream_synchronize(stream)
        probe.graph_destroy(outer)
        probe.graph_destroy(graph)

    def test_a_graph_that_is_destroyed_behind_work_is_still_done(
        self, device: Device, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        graph = self.captured(device, probe, stream)
        finish = busy(stream)
        probe.graph_launch(graph, stream)
        probe.event_record(event, stream)
        probe.graph_destroy(graph)
        finish()
        probe.event_synchronize(event)
        probe.stream_synchronize(stream)

    def test_a_graph_is_not_launched_on_a_destroyed_stream(
        self, device: Device, probe: Probe, stream: int, other_stream: int
    ) -> None:
        graph = self.captured(device, probe, stream)
        probe.stream_destroy(other_stream)
        assert refusal(probe.graph_launch, graph, other_stream) == Status.INVALID
        probe.graph_destroy(graph)
