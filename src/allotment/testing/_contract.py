"""The suite itself: what a device shows is tested through its contract table and nothing else.

A backend runs all of it with a subclass in its own test file:

    class TestHostContract(BackendContract):
        @pytest.fixture
        def device(self):
            return HostDevice()

        def hold(self, device, stream): ...

What the contract itself has no operation for, the subclass supplies by overriding `write`, `read`, `hold` and
`launch`. A test that needs what the device cannot do, or what its tests do not supply, is skipped, and says so.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import wait as wait_for_any
from contextlib import contextmanager, suppress
from itertools import pairwise
from typing import TypeVar

import pytest

from allotment._core.contract.operations import GROUPS
from allotment._core.contract.probe import Capability, Probe, Share, Status, StatusError
from allotment._core.contract.table import Device

Busy = Callable[[int], Callable[[], object]]

MORE_THAN_ANY_DEVICE = 1 << 60

OPERATIONS_OF: dict[Capability, list[set[str]]] = {}
"""What each capability stands for, in groups that a device has whole or not at all; sharing has two of them."""
for group in GROUPS:
    if group.capability is not None:
        OPERATIONS_OF.setdefault(group.capability, []).append({operation.name for operation in group.operations})


Test = TypeVar("Test", bound=Callable[..., object])


def on_threads(test: Test) -> Test:
    """Say of a test that it starts threads, without a marker that its users would have to know."""
    vars(test)["runs_threads"] = True
    return test


class BackendContract:
    """Tests that a device passes; subclass it in a test file, with a fixture `device`.

    What the contract has no operation for, the subclass supplies by overriding `write`, `read`, `hold` and `launch`. A
    test that needs what the device cannot do, or what its tests do not supply, is skipped, and says so. `segment_size`
    is how large the segments are that it is tested with.
    """

    segment_size = 2 << 20
    exact_memory_info = False
    """Whether no other process uses the device, and its free memory moves by exactly what is allocated and created."""
    notices_empty_unmaps = True
    """Whether the device refuses to unmap where nothing is mapped; a driver may find that there is nothing to do."""

    nests_graphs = True
    """Whether a graph can be launched on a stream that is being captured; a driver may refuse that."""

    # What a backend's tests supply.

    @pytest.fixture
    def device(self) -> Device:
        """The device to be tested: yours to supply."""
        raise NotImplementedError("a contract test needs a `device` fixture")

    def write(self, device: Device, address: int, data: bytes) -> None:
        """Put bytes into device memory."""
        need(Probe(device), Capability.HOST)
        ctypes.memmove(address, data, len(data))

    def read(self, device: Device, address: int, size: int) -> bytes:
        """Bytes of device memory."""
        need(Probe(device), Capability.HOST)
        return ctypes.string_at(address, size)

    def hold(self, device: Device, stream: int) -> Callable[[], object]:
        """Give the stream work that is not done before the returned function is called (twice does no harm).

        Waiting for the stream may itself be what finishes the work.
        """
        pytest.skip("these tests have no way to keep a stream of this device busy")

    def launch(self, device: Device, stream: int) -> None:
        """Give the stream one piece of work that ends by itself: one node, if the stream is being captured."""
        pytest.skip("these tests have no way to give a stream of this device work")

    @pytest.fixture
    def probe(self, device: Device) -> Probe:
        """The operations of its contract table, callable one by one."""
        return Probe(device)

    @pytest.fixture
    def stream(self, probe: Probe) -> Iterator[int]:
        """Handle of a stream."""
        with created_stream(probe) as stream:
            yield stream

    @pytest.fixture
    def other_stream(self, probe: Probe) -> Iterator[int]:
        """Handle of another stream."""
        with created_stream(probe) as stream:
            yield stream

    @pytest.fixture
    def busy(self, device: Device, stream: int, other_stream: int) -> Iterator[Busy]:
        """`hold`, for tests: a test that fails half-way leaves no stream waiting for ever."""
        finishes = []

        def keep_busy(stream: int) -> Callable[[], object]:
            finishes.append(self.hold(device, stream))
            return finishes[-1]

        yield keep_busy
        for finish in finishes:
            finish()

    @pytest.fixture
    def event(self, probe: Probe) -> int:
        """Handle of an event that was never recorded."""
        need(probe, Capability.EVENTS)
        event: int = probe.event_create()
        return event

    @pytest.fixture
    def page(self, probe: Probe) -> int:
        """Size of the chunks that virtual memory is tested with."""
        need(probe, Capability.VIRTUAL)
        granularity = probe.granularity()
        assert granularity > 0
        page: int = -(-self.segment_size // granularity) * granularity
        return page

    # The table.

    def test_plain_memory_is_always_there(self, probe: Probe) -> None:
        assert {"segment_allocate", "segment_free"} <= probe.operations

    @pytest.mark.parametrize(
        "capability", sorted(OPERATIONS_OF.keys() - {Capability.SHARE}), ids=lambda capability: capability.name.lower()
    )
    def test_a_capability_stands_for_its_operations(self, probe: Probe, capability: Capability) -> None:
        (operations,) = OPERATIONS_OF[capability]
        if capability in probe.capabilities:
            assert operations - probe.operations == set()
        elif capability is not Capability.EVENTS:
            assert operations & probe.operations == set()
        else:  # a device without events may still let one wait for it
            assert "event_record" not in probe.operations

    def test_sharing_is_of_segments_or_of_chunks_or_of_both(self, probe: Probe) -> None:
        whole = [operations for operations in OPERATIONS_OF[Capability.SHARE] if operations <= probe.operations]
        started = [operations for operations in OPERATIONS_OF[Capability.SHARE] if operations & probe.operations]
        assert whole == started
        assert bool(whole) == (Capability.SHARE in probe.capabilities)

    # Plain memory.

    def test_segments_do_not_overlap(self, probe: Probe) -> None:
        addresses = sorted(probe.segment_allocate(self.segment_size) for _ in range(4))
        assert addresses[0] > 0
        for lower, upper in pairwise(addresses):
            assert lower + self.segment_size <= upper
        for address in addresses:
            probe.segment_free(address, self.segment_size)

    def test_segments_keep_what_was_written(self, device: Device, probe: Probe) -> None:
        first, second = (probe.segment_allocate(self.segment_size) for _ in range(2))
        self.write(device, first, b"first")
        self.write(device, second, b"second")
        last = second + self.segment_size - 4
        self.write(device, last, b"last")
        assert self.read(device, first, 5) == b"first"
        assert self.read(device, second, 6) == b"second"
        assert self.read(device, last, 4) == b"last"
        probe.segment_free(first, self.segment_size)
        assert self.read(device, second, 6) == b"second"
        probe.segment_free(second, self.segment_size)

    def test_a_segment_too_large_for_the_device_is_out_of_memory(self, probe: Probe) -> None:
        assert refusal(probe.segment_allocate, MORE_THAN_ANY_DEVICE) == Status.OUT_OF_MEMORY
        probe.segment_free(probe.segment_allocate(self.segment_size), self.segment_size)

    def test_a_segment_cannot_be_freed_twice(self, probe: Probe) -> None:
        address = probe.segment_allocate(self.segment_size)
        probe.segment_free(address, self.segment_size)
        assert refusal(probe.segment_free, address, self.segment_size) in (Status.INVALID, Status.DEVICE_ERROR)

    @on_threads
    def test_threads_allocate_and_free_at_once(self, probe: Probe) -> None:
        live: set[int] = set()
        starting = threading.Barrier(4)

        def allocate_and_free() -> None:
            starting.wait()
            for _ in range(20):
                address = probe.segment_allocate(self.segment_size)
                assert address not in live
                live.add(address)
                live.remove(address)
                probe.segment_free(address, self.segment_size)

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(allocate_and_free) for _ in range(4)]:
                done.result()

    # The device as a whole.

    def test_free_memory_is_part_of_the_total(self, probe: Probe) -> None:
        need_operation(probe, "memory_info")
        free, total = probe.memory_info()
        assert 0 <= free <= total
        assert total > 0

    def test_memory_info_follows_segments(self, probe: Probe) -> None:
        self.need_exact_memory_info(probe)
        free, total = probe.memory_info()
        address = probe.segment_allocate(self.segment_size)
        assert probe.memory_info() == (free - self.segment_size, total)
        assert refusal(probe.segment_allocate, MORE_THAN_ANY_DEVICE) == Status.OUT_OF_MEMORY
        assert probe.memory_info() == (free - self.segment_size, total)
        probe.segment_free(address, self.segment_size)
        assert probe.memory_info() == (free, total)

    def test_memory_info_follows_chunks_and_not_ranges(self, probe: Probe, page: int) -> None:
        self.need_exact_memory_info(probe)
        free, total = probe.memory_info()
        address = probe.range_reserve(4 * page)
        assert probe.memory_info() == (free, total)
        chunk = probe.chunk_create(page)
        assert probe.memory_info() == (free - page, total)
        self.map_with_access(probe, address, page, chunk)
        assert probe.memory_info() == (free - page, total)
        probe.unmap(address, page)
        probe.chunk_release(chunk, page)
        assert probe.memory_info() == (free, total)
        probe.range_release(address, 4 * page)

    @on_threads
    def test_a_failure_is_described_to_the_thread_that_saw_it(self, probe: Probe) -> None:
        need_operation(probe, "describe")
        before = probe.describe()

        def fail() -> str:
            assert refusal(probe.segment_allocate, MORE_THAN_ANY_DEVICE) == Status.OUT_OF_MEMORY
            return probe.describe()

        with ThreadPoolExecutor(1) as thread:
            assert thread.submit(fail).result() != ""
        assert probe.describe() == before

    def test_an_error_can_be_cleared_when_there_is_none(self, probe: Probe) -> None:
        need_operation(probe, "clear_error")
        probe.clear_error()

    # Virtual memory.

    def test_ranges_do_not_overlap_and_start_at_the_granularity(self, probe: Probe, page: int) -> None:
        size = 4 * page
        addresses = sorted(probe.range_reserve(size) for _ in range(3))
        assert all(address > 0 and address % probe.granularity() == 0 for address in addresses)
        for lower, upper in pairwise(addresses):
            assert lower + size <= upper
        for address in addresses:
            probe.range_release(address, size)

    def test_mapped_memory_keeps_what_was_written(self, device: Device, probe: Probe, page: int) -> None:
        address = probe.range_reserve(4 * page)
        chunks = [probe.chunk_create(page) for _ in range(2)]
        for at, chunk in enumerate(chunks):
            self.map_with_access(probe, address + at * page, page, chunk)
        across = b"across the border of two chunks"
        self.write(device, address + page - 8, across)
        assert self.read(device, address + page - 8, len(across)) == across
        for at, chunk in enumerate(chunks):
            probe.unmap(address + at * page, page)
            probe.chunk_release(chunk, page)
        probe.range_release(address, 4 * page)

    def test_a_chunk_keeps_its_content_from_one_place_to_the_next(
        self, device: Device, probe: Probe, page: int
    ) -> None:
        address = probe.range_reserve(2 * page)
        chunk = probe.chunk_create(page)
        self.map_with_access(probe, address, page, chunk)
        self.write(device, address + 100, b"content")
        probe.unmap(address, page)
        self.map_with_access(probe, address + page, page, chunk)
        assert self.read(device, address + page + 100, 7) == b"content"
        self.unmap_and_release(probe, address + page, page, chunk)
        probe.range_release(address, 2 * page)

    def test_one_chunk_at_two_addresses_is_the_same_memory(self, device: Device, probe: Probe, page: int) -> None:
        address = probe.range_reserve(4 * page)
        chunk = probe.chunk_create(page)
        self.map_with_access(probe, address, page, chunk)
        self.map_with_access(probe, address + 2 * page, page, chunk)
        self.write(device, address + 100, b"written once")
        assert self.read(device, address + 2 * page + 100, 12) == b"written once"
        probe.unmap(address, page)
        assert self.read(device, address + 2 * page + 100, 12) == b"written once"
        self.unmap_and_release(probe, address + 2 * page, page, chunk)
        probe.range_release(address, 4 * page)

    def test_unmapping_leaves_the_neighbours(self, device: Device, probe: Probe, page: int) -> None:
        address = probe.range_reserve(4 * page)
        chunks = [probe.chunk_create(page) for _ in range(3)]
        for at, chunk in enumerate(chunks):
            self.map_with_access(probe, address + at * page, page, chunk)
            self.write(device, address + at * page, b"%d" % at)
        probe.unmap(address + page, page)
        assert self.read(device, address, 1) == b"0"
        assert self.read(device, address + 2 * page, 1) == b"2"
        self.map_with_access(probe, address + page, page, chunks[1])
        assert self.read(device, address + page, 1) == b"1"
        for at, chunk in enumerate(chunks):
            self.unmap_and_release(probe, address + at * page, page, chunk)
        probe.range_release(address, 4 * page)

    def test_a_chunk_too_large_for_the_device_is_out_of_memory(self, probe: Probe, page: int) -> None:
        assert refusal(probe.chunk_create, MORE_THAN_ANY_DEVICE // page * page) == Status.OUT_OF_MEMORY
        probe.chunk_release(probe.chunk_create(page), page)

    def test_a_released_chunk_cannot_be_mapped_and_leaves_the_place_free(self, probe: Probe, page: int) -> None:
        address = probe.range_reserve(page)
        released = probe.chunk_create(page)
        probe.chunk_release(released, page)
        assert refusal(probe.map, address, page, released) in (Status.INVALID, Status.DEVICE_ERROR)
        chunk = probe.chunk_create(page)
        self.map_with_access(probe, address, page, chunk)
        self.unmap_and_release(probe, address, page, chunk)
        probe.range_release(address, page)

    def test_mapping_over_a_mapping_fails_and_keeps_what_is_there(
        self, device: Device, probe: Probe, page: int
    ) -> None:
        address = probe.range_reserve(page)
        chunk, intruder = probe.chunk_create(page), probe.chunk_create(page)
        self.map_with_access(probe, address, page, chunk)
        self.write(device, address, b"first")
        assert refusal(probe.map, address, page, intruder) in (Status.INVALID, Status.DEVICE_ERROR)
        assert self.read(device, address, 5) == b"first"
        probe.chunk_release(intruder, page)
        self.unmap_and_release(probe, address, page, chunk)
        probe.range_release(address, page)

    def test_what_is_not_mapped_cannot_be_unmapped(self, probe: Probe, page: int) -> None:
        if not self.notices_empty_unmaps:
            pytest.skip("this device does not notice")
        address = probe.range_reserve(page)
        assert refusal(probe.unmap, address, page) in (Status.INVALID, Status.DEVICE_ERROR)
        probe.range_release(address, page)

    # Streams and events.

    def test_created_streams_are_new_and_idle(self, probe: Probe, stream: int, other_stream: int) -> None:
        assert len({0, stream, other_stream}) == 3
        assert probe.stream_query(stream)
        assert probe.stream_query(other_stream)

    def test_an_event_never_recorded_is_ready(self, probe: Probe, stream: int, event: int) -> None:
        assert probe.event_query(event)
        probe.event_synchronize(event)
        probe.stream_wait(stream, event)
        probe.stream_synchronize(stream)
        probe.event_destroy(event)

    def test_the_default_stream_takes_events(self, probe: Probe, event: int) -> None:
        probe.event_record(event, 0)
        probe.stream_synchronize(0)
        assert probe.event_query(event)

    def test_an_event_waits_for_the_work_before_it(self, probe: Probe, busy: Busy, stream: int, event: int) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        assert not probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.event_synchronize(event)
        assert probe.event_query(event)

    def test_an_event_does_not_wait_for_the_work_after_it(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        probe.event_record(event, stream)
        probe.event_synchronize(event)
        finish = busy(stream)
        assert probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)

    def test_an_event_recorded_again_stands_for_the_later_place(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.event_record(event, other_stream)
        probe.event_synchronize(event)
        assert probe.event_query(event)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)

    def test_events_of_one_stream_become_ready_in_order(self, probe: Probe, busy: Busy, stream: int) -> None:
        first, second = probe.event_create(), probe.event_create()
        finish_first = busy(stream)
        probe.event_record(first, stream)
        finish_second = busy(stream)
        probe.event_record(second, stream)
        assert not probe.event_query(first)
        assert not probe.event_query(second)
        finish_first()
        finish_second()
        probe.event_synchronize(second)
        assert probe.event_query(first)

    def test_streams_do_not_wait_for_each_other(self, probe: Probe, busy: Busy, stream: int, other_stream: int) -> None:
        finish = busy(stream)
        probe.stream_synchronize(other_stream)
        assert probe.stream_query(other_stream)
        assert not probe.stream_query(stream)
        finish()
        probe.stream_synchronize(stream)
        assert probe.stream_query(stream)

    def test_a_stream_waits_for_an_event_of_another(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        behind = probe.event_create()
        probe.event_record(behind, other_stream)
        assert not probe.event_query(behind)
        finish()
        probe.stream_synchronize(other_stream)
        assert probe.event_query(behind)
        assert probe.event_query(event)

    def test_a_wait_is_for_what_the_event_stood_for_then(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_synchronize(other_stream)
        assert probe.stream_query(other_stream)
        assert not probe.event_query(event)
        finish()
        probe.stream_synchronize(stream)

    @on_threads
    def test_waiting_for_an_event_lasts_until_it_is_ready(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        self.assert_lasts(lambda: probe.event_synchronize(event), lambda: probe.event_query(event), finish)

    @on_threads
    def test_waiting_for_a_stream_lasts_until_it_is_idle(self, probe: Probe, busy: Busy, stream: int) -> None:
        finish = busy(stream)
        self.assert_lasts(lambda: probe.stream_synchronize(stream), lambda: probe.stream_query(stream), finish)

    @on_threads
    def test_waiting_for_the_device_lasts_until_every_stream_is_idle(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int
    ) -> None:
        finish, finish_other = busy(stream), busy(other_stream)
        finish()
        self.assert_lasts(
            probe.device_synchronize,
            lambda: probe.stream_query(stream) and probe.stream_query(other_stream),
            finish_other,
        )

    def test_a_destroyed_stream_is_invalid_for_every_later_call(self, probe: Probe, stream: int, event: int) -> None:
        probe.stream_destroy(stream)
        assert refusal(probe.stream_query, stream) == Status.INVALID
        assert refusal(probe.stream_synchronize, stream) == Status.INVALID
        assert refusal(probe.stream_wait, stream, event) == Status.INVALID
        assert refusal(probe.stream_destroy, stream) == Status.INVALID
        assert probe.event_query(event)

    def test_an_event_of_a_destroyed_stream_is_refused_or_done_when_its_work_is(
        self, probe: Probe, busy: Busy, stream: int, event: int
    ) -> None:
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_destroy(stream)
        was_done = probe.event_query(event)
        try:
            probe.event_record(event, stream)
        except StatusError as refused:
            assert refused.status == Status.INVALID
        else:
            assert probe.event_query(event) == was_done
        finish()
        probe.event_synchronize(event)
        assert probe.event_query(event)

    # Graph capture.

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

    # Moving and sharing.

    def test_a_copy_arrives(self, device: Device, probe: Probe) -> None:
        need(probe, Capability.COPY)
        source, destination = (probe.segment_allocate(self.segment_size) for _ in range(2))
        self.write(device, source, b"before copied after")
        self.write(device, destination, b"................")
        probe.copy(destination + 3, source + 7, 6, device.index, device.index)
        self.wait_for(probe, 0)
        assert self.read(device, destination, 12) == b"...copied..."
        for address in (source, destination):
            probe.segment_free(address, self.segment_size)

    def test_a_copy_takes_its_turn_on_the_stream(self, device: Device, probe: Probe, busy: Busy, stream: int) -> None:
        need(probe, Capability.COPY)
        source, destination = (probe.segment_allocate(self.segment_size) for _ in range(2))
        self.write(device, source, b"early")
        finish = busy(stream)
        probe.copy(destination, source, 5, device.index, device.index, stream)
        assert not probe.stream_query(stream)
        self.write(device, source, b"later")
        finish()
        self.wait_for(probe, stream)
        assert self.read(device, destination, 5) == b"later"
        for address in (source, destination):
            probe.segment_free(address, self.segment_size)

    def test_segments_have_handles_of_their_own(self, probe: Probe) -> None:
        need_operation(probe, "segment_export")
        addresses = [probe.segment_allocate(self.segment_size) for _ in range(2)]
        handles = [probe.segment_export(address) for address in addresses]
        assert len(set(handles)) == 2
        assert all(0 < len(handle) <= 64 for handle in handles)
        for address in addresses:
            probe.segment_free(address, self.segment_size)

    def test_a_chunk_imported_by_descriptor_is_the_same_memory(self, device: Device, probe: Probe) -> None:
        need_operation(probe, "chunk_export")
        page = probe.granularity()
        chunk = probe.chunk_create(page)
        try:
            handle = probe.chunk_export(chunk, Share.DESCRIPTOR)
        except StatusError as error:
            assert error.status == Status.UNSUPPORTED
            pytest.skip("this device does not share chunks by descriptor")
        assert probe.chunk_export(chunk, Share.DESCRIPTOR) == handle
        own = os.dup(int.from_bytes(handle, sys.byteorder))
        imported = probe.chunk_import(Share.DESCRIPTOR, own.to_bytes(4, sys.byteorder), page)
        os.close(own)
        address = probe.range_reserve(2 * page)
        self.map_with_access(probe, address, page, chunk)
        self.map_with_access(probe, address + page, page, imported)
        self.write(device, address, b"shared")
        assert self.read(device, address + page, 6) == b"shared"
        self.unmap_and_release(probe, address, page, chunk)
        self.unmap_and_release(probe, address + page, page, imported)
        probe.range_release(address, 2 * page)

    def test_pinned_memory_is_memory_of_this_process(self, probe: Probe) -> None:
        need(probe, Capability.PINNED)
        address = probe.pinned_allocate(4096)
        ctypes.memset(address, 7, 4096)
        assert ctypes.string_at(address, 4096) == b"\7" * 4096
        probe.pinned_free(address)

    # The device's own stream-ordered pool.

    def test_memory_of_the_pool_does_not_overlap(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        sizes = {probe.ordered_allocate(size, stream): size for size in (1, 513, 4096, self.segment_size)}
        assert min(sizes) > 0
        for lower, upper in pairwise(sorted(sizes)):
            assert lower + sizes[lower] <= upper
        for address in sizes:
            probe.ordered_free(address, stream)
        probe.stream_synchronize(stream)

    def test_memory_of_the_pool_keeps_what_was_written(self, device: Device, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        first, second = (probe.ordered_allocate(self.segment_size, stream) for _ in range(2))
        probe.stream_synchronize(stream)
        self.write(device, first, b"first")
        self.write(device, second + self.segment_size - 6, b"second")
        probe.ordered_free(second, stream)
        assert self.read(device, first, 5) == b"first"
        probe.ordered_free(first, stream)
        probe.stream_synchronize(stream)

    def test_a_request_that_the_pool_cannot_serve_is_out_of_memory(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        used = probe.ordered_usage()[0]
        assert refusal(probe.ordered_allocate, MORE_THAN_ANY_DEVICE, stream) == Status.OUT_OF_MEMORY
        assert probe.ordered_usage()[0] == used
        probe.ordered_free(probe.ordered_allocate(self.segment_size, stream), stream)
        probe.stream_synchronize(stream)

    def test_memory_of_the_pool_cannot_be_freed_twice(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        address = probe.ordered_allocate(self.segment_size, stream)
        probe.ordered_free(address, stream)
        assert refusal(probe.ordered_free, address, stream) in (Status.INVALID, Status.DEVICE_ERROR)
        probe.stream_synchronize(stream)

    def test_the_pool_tells_what_is_used_and_what_it_holds(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        probe.ordered_reset_high()
        used, used_high, held, held_high = probe.ordered_usage()
        assert (used_high, held_high) == (used, held)
        address = probe.ordered_allocate(self.segment_size, stream)
        used_then, _, held_then, _ = probe.ordered_usage()
        assert used_then >= used + self.segment_size
        assert held_then >= used_then
        probe.ordered_free(address, stream)
        probe.stream_synchronize(stream)
        used_after, used_high, _, held_high = probe.ordered_usage()
        assert used_after == used
        assert (used_high, held_high) == (used_then, held_then)
        probe.ordered_reset_high()
        assert probe.ordered_usage()[1] == used

    def test_the_pool_releases_what_is_unused(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        kept, given = (probe.ordered_allocate(16 * self.segment_size, stream) for _ in range(2))
        held = probe.ordered_usage()[2]
        probe.ordered_free(given, stream)
        probe.stream_synchronize(stream)
        probe.ordered_trim(held)
        assert probe.ordered_usage()[2] == held
        probe.ordered_trim(0)
        used, _, held_after, _ = probe.ordered_usage()
        assert used <= held_after < held
        probe.ordered_free(kept, stream)
        probe.stream_synchronize(stream)

    def test_a_free_takes_its_turn_on_the_stream(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int
    ) -> None:
        need(probe, Capability.STREAM_ORDERED)
        first = probe.ordered_allocate(self.segment_size, stream)
        finish = busy(stream)
        probe.ordered_free(first, stream)
        second = probe.ordered_allocate(self.segment_size, other_stream)
        assert second != first
        finish()
        probe.stream_synchronize(stream)
        probe.ordered_free(second, other_stream)
        probe.stream_synchronize(other_stream)

    def test_a_free_comes_after_what_its_stream_waits_for(
        self, probe: Probe, busy: Busy, stream: int, other_stream: int, event: int
    ) -> None:
        need(probe, Capability.STREAM_ORDERED)
        address = probe.ordered_allocate(self.segment_size, stream)
        finish = busy(stream)
        probe.event_record(event, stream)
        probe.stream_wait(other_stream, event)
        probe.ordered_free(address, other_stream)
        again = probe.ordered_allocate(self.segment_size, 0)
        assert again != address
        finish()
        probe.stream_synchronize(stream)
        probe.stream_synchronize(other_stream)
        probe.ordered_free(again, 0)
        probe.stream_synchronize(0)

    def test_a_destroyed_stream_gets_no_memory_and_gives_none_back(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        address = probe.ordered_allocate(self.segment_size, stream)
        probe.stream_destroy(stream)
        assert refusal(probe.ordered_allocate, self.segment_size, stream) == Status.INVALID
        assert refusal(probe.ordered_free, address, stream) == Status.INVALID
        probe.ordered_free(address, 0)
        probe.stream_synchronize(0)

    def test_requests_and_frees_in_a_capture_are_nodes(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        need(probe, Capability.CAPTURE)
        used = probe.ordered_usage()[0]
        probe.capture_begin(stream)
        address = probe.ordered_allocate(self.segment_size, stream)
        (allocated,) = probe.capture_terminals(stream)
        probe.ordered_free(address, stream)
        (freed,) = probe.capture_terminals(stream)
        assert probe.node_predecessors(freed) == (allocated,)
        probe.graph_destroy(probe.capture_end(stream))
        assert probe.ordered_usage()[0] == used

    def test_memory_from_outside_a_capture_cannot_be_freed_inside(self, probe: Probe, stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        need(probe, Capability.CAPTURE)
        address = probe.ordered_allocate(self.segment_size, stream)
        probe.stream_synchronize(stream)
        probe.capture_begin(stream)
        assert refusal(probe.ordered_free, address, stream) in (Status.INVALID, Status.DEVICE_ERROR)
        with suppress(StatusError):  # the attempt may have spoilt the capture
            probe.graph_destroy(probe.capture_end(stream))
        probe.ordered_free(address, stream)
        probe.stream_synchronize(stream)

    def test_a_device_may_touch_its_own_pool(self, device: Device, probe: Probe) -> None:
        need(probe, Capability.STREAM_ORDERED)
        probe.ordered_access(device.index)

    @on_threads
    def test_threads_share_the_pool(self, probe: Probe, stream: int, other_stream: int) -> None:
        need(probe, Capability.STREAM_ORDERED)
        live: set[int] = set()
        starting = threading.Barrier(4)

        def allocate_and_free(on: int) -> None:
            starting.wait()
            for _ in range(20):
                address = probe.ordered_allocate(self.segment_size, on)
                assert address not in live
                live.add(address)
                live.remove(address)
                probe.ordered_free(address, on)

        with ThreadPoolExecutor(4) as threads:
            for done in [threads.submit(allocate_and_free, on) for on in (stream, other_stream) * 2]:
                done.result()
        probe.device_synchronize()

    # Steps that several tests share.

    def captured(self, device: Device, probe: Probe, stream: int) -> int:
        """A graph of one piece of work."""
        need(probe, Capability.CAPTURE)
        probe.capture_begin(stream)
        self.launch(device, stream)
        graph: int = probe.capture_end(stream)
        return graph

    def map_with_access(self, probe: Probe, address: int, size: int, chunk: int) -> None:
        """Map a chunk so that the device may touch it."""
        probe.map(address, size, chunk)
        probe.set_access(address, size, probe.device.index)

    def unmap_and_release(self, probe: Probe, address: int, size: int, chunk: int) -> None:
        """The end of a chunk that is mapped once."""
        probe.unmap(address, size)
        probe.chunk_release(chunk, size)

    def wait_for(self, probe: Probe, stream: int) -> None:
        """Wait for a stream, if the device has a way to."""
        if "stream_synchronize" in probe.operations:
            probe.stream_synchronize(stream)

    def assert_lasts(
        self, wait: Callable[[], None], is_ready: Callable[[], bool], finish: Callable[[], object]
    ) -> None:
        """Check that `wait` returns once `finish` was called, and that it is ready then."""

        def is_ready_after_waiting() -> bool:
            wait()
            return is_ready()

        with ThreadPoolExecutor(1) as thread:
            waiting = thread.submit(is_ready_after_waiting)
            wait_for_any([waiting], timeout=0.05)  # the time for a wait that does not wait to show itself
            finish()
            assert waiting.result()

    def need_exact_memory_info(self, probe: Probe) -> None:
        """Skip the test unless free memory moves by what is allocated alone."""
        need_operation(probe, "memory_info")
        if not self.exact_memory_info:
            pytest.skip("the free memory of this device also moves for other reasons")


def need(probe: Probe, capability: Capability) -> None:
    if capability not in probe.capabilities:
        pytest.skip(f"{probe.device.name} lacks the capability {capability.name}")


def need_operation(probe: Probe, operation: str) -> None:
    if operation not in probe.operations:
        pytest.skip(f"{probe.device.name} lacks the operation {operation}")


@contextmanager
def created_stream(probe: Probe) -> Iterator[int]:
    need(probe, Capability.EVENTS)
    need_operation(probe, "stream_create")
    stream = probe.stream_create()
    yield stream
    with suppress(StatusError):  # the test may have destroyed it
        probe.stream_destroy(stream)


def refusal(call: Callable[..., object], *arguments: object) -> Status:
    """The status with which a call that must fail does fail."""
    with pytest.raises(StatusError) as caught:
        call(*arguments)
    return caught.value.status


def requirements() -> list[str]:
    """What the suite requires of a device, a sentence for each test, in its order.

    What a device cannot do is not required of it: see what each test needs.
    """
    return [sentence(name) for name in vars(BackendContract) if name.startswith("test_")]


def sentence(test_name: str) -> str:
    return test_name.removeprefix("test_").replace("_", " ").capitalize() + "."


for name, test in vars(BackendContract).items():
    if name.startswith("test_"):
        test.__doc__ = sentence(name)
