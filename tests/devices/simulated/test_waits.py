"""A wait of a simulated stream holds back frees in the device's own pool, however long the chain of waits."""

import pytest

from allotment._core.contract.probe import Probe
from allotment._devices.simulated.device import SimulatedDevice

SIZE = 2 << 20


@pytest.mark.parametrize("length", [1, 2, 3, 6])
def test_a_free_waits_for_what_its_stream_waits_for_through_others(length):
    device = SimulatedDevice(1 << 30)
    probe = Probe(device)
    busy = device.create_stream()
    device.launch(busy)
    chain = [busy]
    for _ in range(length):
        stream, event = device.create_stream(), probe.event_create()
        probe.event_record(event, chain[-1])
        probe.stream_wait(stream, event)
        device.launch(stream)
        chain.append(stream)
    address = probe.ordered_allocate(SIZE, chain[-1])
    probe.ordered_free(address, chain[-1])
    for stream in chain[1:]:
        device.finish(stream)
    other = probe.ordered_allocate(SIZE, 0)
    assert other != address
    device.finish(busy)
    assert probe.ordered_allocate(SIZE, 0) == address
