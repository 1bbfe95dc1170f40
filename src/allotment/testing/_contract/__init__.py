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

    What the contract has no operation for, the subclass supplies by overriding `write`, `read`, `hold` and `launch`. A
    test that needs what the device cannot do, or what its tests do not supply, is skipped, and says so. `segment_size`
    is how large the segments are that it is tested with.
    """


def requirements() -> list[str]:
    """What the suite requires of a device, a sentence for each test, in its order.

    What a device cannot do is not required of it: see what each test needs.
    """
    return [sentence(name) for part in BackendContract.__bases__ for name in vars(part) if name.startswith("test_")]


def sentence(test_name: str) -> str:
    return test_name.removeprefix("test_").replace("_", " ").capitalize() + "."


for part in BackendContract.__bases__:
    for name, test in vars(part).items():
        if name.startswith("test_"):
            test.__doc__ = sentence(name)
