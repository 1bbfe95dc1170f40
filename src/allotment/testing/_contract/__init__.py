"""The suite itself, a file for each thing that a device can do.

A backend runs all of it with a subclass in its own test file:

    class TestHostContract(BackendContract):
        @pytest.fixture
        def device(self):
            return HostDevice()

        def hold(self, device, stream): ...
"""

from allotment.testing._contract.captures import CaptureContract
from allotment.testing._contract.device_pool import DevicePoolContract
from allotment.testing._contract.memory import MemoryContract
from allotment.testing._contract.sharing import SharingContract
from allotment.testing._contract.streams import StreamContract
from allotment.testing._contract.table import TableContract
from allotment.testing._contract.virtual_memory import VirtualMemoryContract


class BackendContract(
    TableContract,
    MemoryContract,
    VirtualMemoryContract,
    StreamContract,
    CaptureContract,
    SharingContract,
    DevicePoolContract,
):
    """Tests that a device passes; subclass it in a test file, with a fixture `device`.

    The subclass supplies what the contract has no operation for by overriding `write`, `read`, `hold` and `launch`. A
    test that needs something that the device or its test file does not have is skipped with the reason. `segment_size`
    is the size of the segments in the tests.
    """


def requirements() -> list[str]:
    """Return the requirements of the suite, a sentence for each test, in its order.

    A device need not meet requirements on operations that it does not have.
    """
    return [sentence(name) for part in BackendContract.__bases__ for name in vars(part) if name.startswith("test_")]


def sentence(test_name: str) -> str:
    return test_name.removeprefix("test_").replace("_", " ").capitalize() + "."


for part in BackendContract.__bases__:
    for name, test in vars(part).items():
        if name.startswith("test_"):
            test.__doc__ = sentence(name)
