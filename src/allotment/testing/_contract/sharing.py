"""Memory that is copied, shared, or pinned."""

from __future__ import annotations

import ctypes
import os
import sys

import pytest

from allotment._core.contract.probe import Capability, Probe, Share, Status, StatusError
from allotment._core.contract.table import Device
from allotment.testing._contract.ground import Busy, Ground, need, need_operation


class SharingContract(Ground):
    """Memory that is copied, shared, or pinned."""

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
