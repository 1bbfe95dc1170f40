"""Ranges of addresses, chunks of memory, and mappings of chunks into ranges."""

from __future__ import annotations

from itertools import pairwise

import pytest

from allotment._core.contract.probe import Probe, Status
from allotment._core.contract.table import Device
from allotment.testing._contract.ground import MORE_THAN_ANY_DEVICE, Ground, refusal


class VirtualMemoryContract(Ground):
    """Ranges of addresses, chunks of memory, and mappings of chunks into ranges."""

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
