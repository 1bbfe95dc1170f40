"""The family that a device declares, whatever its name."""

import pytest

from allotment import Allocator
from allotment._adapters.frameworks import tenant_of
from allotment._devices import open_device
from allotment._devices.python.backend import Backend
from allotment.errors import RequestError


class Smallest(Backend):
    def allocate(self, size: int, stream: int) -> int:
        return 1 << 30

    def free(self, address: int, size: int) -> None:
        pass


@pytest.mark.parametrize(("name", "family"), [("host", "host"), ("sim:1GiB", "simulated"), ("sim:1GiB#1", "simulated")])
def test_a_device_of_ours_says_what_kind_it_is(name: str, family: str) -> None:
    if name == "host":
        pytest.importorskip("allotment._devices.host.device", reason="the host device is built only on Linux")
    assert open_device(name).family == family


def test_a_device_written_in_python_is_of_the_family_it_was_made_with() -> None:
    assert Smallest().family == "python"
    assert Smallest(family="npu").family == "npu"


def test_an_adapter_goes_by_the_family_and_not_by_the_name() -> None:
    with pytest.raises(RequestError, match="works with CUDA memory"):
        tenant_of(Allocator(Smallest(name="cuda:0")), "cupy")
    assert tenant_of(Allocator(Smallest(name="mine", family="cuda")), "cupy").name == "cupy"


def test_memory_is_cuda_memory_if_its_device_is_of_that_family() -> None:
    assert Allocator(Smallest(name="mine", family="cuda")).empty(512).__cuda_array_interface__["shape"]
    with pytest.raises(AttributeError, match="is not CUDA memory"):
        Allocator(Smallest(name="cuda:0")).empty(512).__cuda_array_interface__  # noqa: B018
