"""The host device fulfils the contract."""

import threading

import pytest

from allotment._devices.host.device import HostDevice
from allotment.testing import BackendContract

pytestmark = pytest.mark.threads


class TestHostContract(BackendContract):
    @pytest.fixture
    def device(self):
        return HostDevice()

    def hold(self, device, stream):
        gate = threading.Event()
        device.submit(stream, gate.wait)
        return gate.set

    def launch(self, device, stream):
        device.submit(stream, int)
