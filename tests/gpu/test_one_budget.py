"""Several frameworks on one allocator: each computes its part of one sum, and all count against one limit."""

from contextlib import contextmanager

import numpy as np
import pytest

import allotment
from allotment.errors import OutOfMemoryError

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
torch = pytest.importorskip("torch", reason="PyTorch is not installed")
core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
cuda = pytest.importorskip("numba.cuda", reason="numba-cuda cannot be imported", exc_type=ImportError)
adapters = {
    name: pytest.importorskip(f"allotment.{name}", reason=f"{name} cannot be imported", exc_type=ImportError)
    for name in ("cupy", "numba", "cuda_core")
}

pytestmark = pytest.mark.gpu

MIB = 1 << 20
COUNT = 100_000


@cuda.jit
def add_one(array):
    at = cuda.grid(1)
    if at < array.size:
        array[at] += 1


def add_one_in_numba(array):
    add_one[(COUNT + 255) // 256, 256](array)


@contextmanager
def everything_on(allocator):
    adapters["cupy"].install(allocator)
    adapters["numba"].install(allocator)
    try:
        yield adapters["cuda_core"].MemoryResource(allocator)
    finally:
        adapters["cupy"].uninstall()
        adapters["numba"].uninstall()


@pytest.fixture(autouse=True)
def working_frameworks(cuda_device):
    if not (torch.cuda.is_available() and cuda.is_available()):
        pytest.skip("the frameworks cannot use the driver")
    core.Device(0).set_current()


def as_float(buffer):
    """Return our bytes as an array of each framework."""
    return {
        "cupy": cupy.from_dlpack(buffer).view(cupy.float32),
        "torch": torch.from_dlpack(buffer).view(torch.float32),
        "numba": cuda.as_cuda_array(buffer).view(np.float32),
    }


def test_three_frameworks_work_on_one_buffer(allocator):
    buffer = allocator.empty(4 * COUNT)
    views = as_float(buffer)
    views["torch"].copy_(torch.arange(COUNT, device="cuda"))
    views["cupy"] *= 2
    add_one_in_numba(views["numba"])
    expected = np.arange(COUNT, dtype=np.float32) * 2 + 1
    np.testing.assert_array_equal(views["numba"].copy_to_host(), expected)
    np.testing.assert_array_equal(cupy.asnumpy(views["cupy"]), expected)
    np.testing.assert_array_equal(views["torch"].cpu().numpy(), expected)


@pytest.mark.parametrize("framework", ["cupy", "torch", "numba"])
def test_a_consumer_of_a_buffer_keeps_its_memory(allocator, framework):
    view = as_float(allocator.empty(4 * COUNT))[framework]
    assert allocator.stats()["allocation.all.current"] == 1
    del view
    assert allocator.stats()["allocation.all.current"] == 0


def test_memory_of_each_framework_is_worked_on_by_the_others(allocator, capsys):
    with everything_on(allocator) as resource:
        of_cupy = cupy.arange(COUNT, dtype=cupy.float32)
        of_numba = cuda.to_device(np.arange(COUNT, dtype=np.float32))
        of_core = resource.allocate(4 * COUNT)
        ours = allocator.tenant("mine").empty(4 * COUNT)

        add_one_in_numba(cuda.as_cuda_array(of_cupy))
        torch.from_dlpack(of_cupy).mul_(2)

        cupy.asarray(of_numba)[...] *= 2
        torch.as_tensor(of_numba, device="cuda").add_(1)

        torch.from_dlpack(of_core).view(torch.float32).copy_(torch.arange(COUNT, device="cuda"))
        cupy.from_dlpack(of_core).view(cupy.float32)[...] += 5

        cupy.from_dlpack(ours).view(cupy.float32)[...] = 1
        add_one_in_numba(as_float(ours)["numba"])
        torch.from_dlpack(ours).view(torch.float32).mul_(3)

        count = np.arange(COUNT, dtype=np.float32)
        np.testing.assert_array_equal(cupy.asnumpy(of_cupy), (count + 1) * 2)
        np.testing.assert_array_equal(of_numba.copy_to_host(), count * 2 + 1)
        np.testing.assert_array_equal(cupy.asnumpy(cupy.from_dlpack(of_core).view(cupy.float32)), count + 5)
        np.testing.assert_array_equal(as_float(ours)["torch"].cpu().numpy(), np.full(COUNT, 6, np.float32))

        tenants = allocator.tenants()
        assert {name: of["requested_bytes"] for name, of in tenants.items()} == {
            name: 4 * COUNT for name in ("cupy", "numba", "cuda.core", "mine")
        }
        with capsys.disabled():
            print()
            for name, of in tenants.items():
                print(f"    {name:<10}{of['blocks']:>3} blocks{of['allocated_bytes']:>12,} bytes")


def test_all_count_against_one_limit(device):
    allocator = allotment.Allocator(device, limit=256 * MIB)
    with everything_on(allocator) as resource:
        of_cupy = cupy.zeros(150 * MIB, dtype=cupy.uint8)
        with pytest.raises(OutOfMemoryError) as caught:
            cuda.device_array(150 * MIB, np.uint8)
        assert caught.value.facts.limit == 256 * MIB
        with pytest.raises(OutOfMemoryError):
            resource.allocate(150 * MIB)
        del of_cupy
        of_numba = cuda.device_array(150 * MIB, np.uint8)
        assert list(allocator.tenants()) == ["numba"]
        with pytest.raises(OutOfMemoryError):
            cupy.zeros(150 * MIB, dtype=cupy.uint8)
        del of_numba


def test_memory_that_one_lets_go_serves_another(allocator):
    with everything_on(allocator) as resource:
        of_cupy = cupy.zeros(30 * MIB, dtype=cupy.uint8)
        address = of_cupy.data.ptr
        del of_cupy
        of_numba = cuda.device_array(30 * MIB, np.uint8)
        assert int(of_numba.gpu_data.handle) == address
        del of_numba
        of_core = resource.allocate(30 * MIB)
        assert int(of_core.handle) == address
        of_core.close()
        assert allocator.stats()["num_device_alloc"] == 1
