"""The contract, on the simulated device, except what needs memory or a second process."""

from contextlib import suppress

import pytest

from allotment._devices.simulated.device import SimulatedDevice
from allotment.errors import StreamError
from allotment.testing import BackendContract


class TestSimulatedContract(BackendContract):
    exact_memory_info = True

    @pytest.fixture
    def device(self):
        return SimulatedDevice(1 << 30)

    def write(self, device, address, data):
        pytest.skip("a simulated device has no memory")

    def read(self, device, address, size):
        pytest.skip("a simulated device has no memory")

    def hold(self, device, stream):
        device.launch(stream)

        def finish():
            with suppress(StreamError):  # a destroyed stream has finished
                device.finish(stream)

        return finish

    def launch(self, device, stream):
        device.launch(stream)

    # Omitted on purpose.

    def test_sharing_is_of_segments_or_of_chunks_or_of_both(self):
        pytest.skip("what it exports cannot be opened: there is nothing behind it")

    def test_a_chunk_imported_by_descriptor_is_the_same_memory(self):
        pytest.skip("what it exports cannot be opened: there is nothing behind it")

    def test_a_stream_waits_for_an_event_of_another(self):
        pytest.skip("when a stream's own work is done is left to who finishes it")
