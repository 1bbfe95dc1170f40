"""The device's own stream-ordered pool."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from itertools import pairwise

from allotment._core.contract.probe import Capability, Probe, Status, StatusError
from allotment._core.contract.table import Device
from allotment.testing._contract.ground import MORE_THAN_ANY_DEVICE, Busy, Ground, need, on_threads, refusal


class DevicePoolContract(Ground):
    """The device's own stream-ordered pool."""

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
