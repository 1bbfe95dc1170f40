"""Numba on our allocator."""

import gc
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest

import allotment
from allotment.errors import OutOfMemoryError, UnsupportedError

pytest.importorskip("numba_cuda", reason="numba-cuda is not installed")
cuda = pytest.importorskip("numba.cuda", reason="numba-cuda cannot be imported", exc_type=ImportError)
adapter = pytest.importorskip("allotment.numba", reason="numba-cuda cannot be imported", exc_type=ImportError)

pytestmark = pytest.mark.gpu

MIB = 1 << 20
RUNS = 100


@cuda.jit
def fill(array, value):
    at = cuda.grid(1)
    if at < array.size:
        array[at] = value


@cuda.jit
def add(left, right, result):
    at = cuda.grid(1)
    if at < result.size:
        result[at] = left[at] + right[at]


@pytest.fixture(scope="module", autouse=True)
def working_numba(cuda_device):
    if not cuda.is_available():
        pytest.skip("Numba cannot use the driver")


@pytest.fixture
def allocator(allocator):
    adapter.install(allocator)
    yield allocator
    adapter.uninstall()


def blocks(allocator):
    return allocator.tenants().get("numba", {"blocks": 0})["blocks"]


def launch(size):
    return (size + 255) // 256, 256


def test_values_are_right(allocator):
    left, right = np.arange(100_000, dtype=np.float32), np.ones(100_000, dtype=np.float32)
    result = cuda.device_array(100_000, np.float32)
    add[launch(100_000)](cuda.to_device(left), cuda.to_device(right), result)
    np.testing.assert_array_equal(result.copy_to_host(), left + right)
    np.testing.assert_array_equal(result[10:20].copy_to_host(), (left + right)[10:20])


def test_memory_that_is_dropped_is_reused(allocator):
    def step():
        array = cuda.device_array(MIB, np.uint8)
        fill[launch(MIB)](array, 3)
        return array.copy_to_host()[-1]

    step()
    gc.collect()  # compiling a kernel leaves its first arguments in a cycle
    warm = allocator.stats()["num_device_alloc"]
    assert {int(step()) for _ in range(50)} == {3}
    assert allocator.stats()["num_device_alloc"] == warm
    assert blocks(allocator) == 0


def test_memory_is_counted_as_numbas(allocator):
    array = cuda.device_array(1_000_000, np.uint8)
    view = array[100:]
    assert allocator.tenants()["numba"]["requested_bytes"] == 1_000_000
    del array
    assert blocks(allocator) == 1
    del view
    assert blocks(allocator) == 0


def test_memory_info_is_the_devices(allocator):
    info = cuda.current_context().get_memory_info()
    assert 0 < info.free < info.total == allocator.memory_info()[1]


def test_without_memory_it_raises_ours_and_goes_on(device):
    adapter.install(allotment.Allocator(device, limit=64 * MIB))
    try:
        with pytest.raises(MemoryError) as caught:
            cuda.device_array(256 * MIB, np.uint8)
        assert isinstance(caught.value, OutOfMemoryError)
        assert caught.value.facts.requested == 256 * MIB
        assert cuda.to_device(np.ones(10)).copy_to_host().sum() == 10
    finally:
        adapter.uninstall()


def test_uninstall_restores_the_previous_state_and_arrays_stay(allocator):
    array = cuda.to_device(np.arange(10))
    adapter.uninstall()
    other = cuda.to_device(np.arange(10))
    assert blocks(allocator) == 1
    assert array.copy_to_host().sum() == other.copy_to_host().sum() == 45
    del array
    assert blocks(allocator) == 0


def test_memory_that_waits_to_be_deallocated_is_not_lost(device):
    waiting = cuda.current_context().memory_manager.deallocations
    waiting.clear()
    array = cuda.to_device(np.arange(10))
    adapter.install(allotment.Allocator(device))
    del array
    assert len(cuda.current_context().memory_manager.deallocations) == 1
    adapter.uninstall()
    assert cuda.current_context().memory_manager.deallocations is waiting
    assert len(waiting) == 1


def test_the_environment_variable_is_enough(device):
    program = (
        "from numba import cuda; import numpy; import allotment; x = cuda.to_device(numpy.ones(1000, numpy.uint8));"
        "print(allotment.current('cuda:0').tenants()['numba']['requested_bytes'])"
    )
    environment = os.environ | {"NUMBA_CUDA_MEMORY_MANAGER": "allotment.numba"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True, text=True)
    assert done.stdout.strip() == "1000", done.stderr


# Two streams and one array.


def write_late_and_reuse(device, side, record):
    """Return (whether the same memory was allocated again, what the second owner then finds in it)."""
    first = cuda.device_array(MIB, np.uint8)
    address = int(first.gpu_data.handle)
    with device.hold(side):
        fill[(*launch(MIB), cuda.external_stream(side))](first, 7)
        if record:
            adapter.record_stream(first[100:200], cuda.external_stream(side))
        del first
        second = cuda.device_array(MIB, np.uint8)
        fill[launch(MIB)](second, 2)
        device.synchronize(0)
    device.synchronize(side)
    return int(second.gpu_data.handle) == address, set(np.unique(second.copy_to_host()).tolist())


@pytest.fixture
def side(device):
    """Return a stream that does not wait for the default one; nothing here waits for it while it is held.

    The kernel is loaded, and the compiler's garbage is collected, so that no collection comes later: unloading code and
    freeing Numba's own memory wait for the whole device.
    """
    stream = device.create_stream()
    warm = cuda.device_array(MIB, np.uint8)
    fill[(*launch(MIB), cuda.external_stream(stream))](warm, 0)
    device.synchronize()
    gc.collect()
    gc.disable()
    yield stream
    gc.enable()
    device.destroy_stream(stream)


def test_an_array_written_late_is_not_reused_when_recorded(device, side, allocator):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, side, record=True) == (False, {2})


def test_without_record_stream_the_same_program_is_corrupted(device, side, allocator):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, side, record=False) == (True, {7})


# Other processes.

READ = (
    "import pickle, sys; from numba import cuda\n"
    "with pickle.load(sys.stdin.buffer) as array: print(int(array.copy_to_host().sum()))"
)


def test_another_process_reads_an_array(device, allocator):
    other = cuda.to_device(np.zeros(1000, np.uint8))  # so that the array does not start its segment
    array = cuda.to_device(np.arange(100, dtype=np.int64))
    try:
        handle = pickle.dumps(array.get_ipc_handle())
    except UnsupportedError:
        raise
    except allotment.DeviceError as error:
        pytest.skip(f"this machine shares no memory: {error}")
    done = subprocess.run([sys.executable, "-c", READ], input=handle, capture_output=True)
    assert done.stdout.strip() == b"4950", done.stderr.decode()
    del other


def test_another_process_reads_an_array_of_an_expandable_segment(device):
    adapter.install(allotment.Allocator(device, settings="expandable_segments:True"))
    try:
        array = cuda.to_device(np.arange(100, dtype=np.int64))
        handle = pickle.dumps(array[10:].get_ipc_handle())
        done = subprocess.run([sys.executable, "-c", READ], input=handle, capture_output=True)
        assert done.stdout.strip() == b"4905", done.stderr.decode()
    finally:
        adapter.uninstall()


def test_another_process_reads_an_array_that_is_a_buffer_of_ours(device, allocator):
    buffer = allocator.empty(800)
    device.copy_from_host(buffer.address, np.arange(100, dtype=np.int64))
    array = cuda.as_cuda_array(buffer).view(np.int64)
    done = subprocess.run([sys.executable, "-c", READ], input=pickle.dumps(array.get_ipc_handle()), capture_output=True)
    assert done.stdout.strip() == b"4950", done.stderr.decode()


def test_a_context_that_was_made_elsewhere_is_served(allocator):
    """Numba must accept a context that another library has made current."""
    from numba.cuda.cudadrv import driver

    number = driver.binding.CUdevice(0)
    handle = driver.driver.cuDevicePrimaryCtxRetain(number)
    try:
        context = driver.Context(number, handle)
        memory = context.memalloc(1000)
        assert blocks(allocator) >= 1
        del memory, context
        gc.collect()
    finally:
        driver.driver.cuDevicePrimaryCtxRelease(number)


def test_pinned_memory_is_kept_and_copied_right(allocator):
    for value in (1, 2, 3):
        host = cuda.pinned_array(1000, np.uint8)
        address = host.ctypes.data
        host[:] = value
        array = cuda.to_device(host)
        assert (array.copy_to_host() == value).all()
        del host, array
        gc.collect()
    assert cuda.pinned_array(1000, np.uint8).ctypes.data == address
