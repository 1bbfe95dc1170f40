"""Plain memory, how much of it there is, and errors."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise

from allotment._core.contract.probe import Probe, Status
from allotment._core.contract.table import Device
from allotment.testing._contract.ground import MORE_THAN_ANY_DEVICE, Ground, need_operation, on_threads, refusal


class MemoryContract(Ground):
    """Plain memory, how much of it there is, and errors."""

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
