"""CuPy on our allocator: arrays have the right values, and memory is reused in the order of streams."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import allotment
from allotment.errors import AddressError, OutOfMemoryError

cupy = pytest.importorskip("cupy", reason="CuPy is not installed")
adapter = pytest.importorskip("allotment.cupy", reason="CuPy cannot be imported", exc_type=ImportError)

pytestmark = pytest.mark.gpu

MIB = 1 << 20
RUNS = 100


@pytest.fixture(scope="module", autouse=True)
def working_cupy(cuda_device):
    try:
        cupy.cuda.runtime.getDeviceCount()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        pytest.skip(f"CuPy cannot use the driver: {error}")


@pytest.fixture
def allocator(allocator):
    adapter.install(allocator)
    yield allocator
    adapter.uninstall()


@pytest.fixture
def streams():
    """Return the stream that memory is for, and another."""
    return [cupy.cuda.Stream(non_blocking=True) for _ in range(2)]


def blocks(allocator):
    return allocator.tenants().get("cupy", {"blocks": 0})["blocks"]


def test_values_are_right(allocator):
    x = cupy.arange(100_000, dtype=cupy.float64)
    y = cupy.sqrt(x[::3]) + x[:33_334].astype(cupy.float32)
    host = np.arange(100_000, dtype=np.float64)
    np.testing.assert_allclose(cupy.asnumpy(y), np.sqrt(host[::3]) + host[:33_334].astype(np.float32), rtol=1e-6)
    a = cupy.asarray(np.random.default_rng(1).random((300, 300)))
    np.testing.assert_allclose(cupy.asnumpy(a @ a), cupy.asnumpy(a) @ cupy.asnumpy(a))


def test_it_goes_through_c_functions(allocator):
    assert type(cupy.empty(10).data.mem).__name__ == "CFunctionAllocatorMemory"


def test_memory_that_is_dropped_is_reused(allocator):
    def step():
        x = cupy.ones(MIB)
        y = cupy.zeros(3000)
        return float((x * 2).sum() + y.sum())

    assert step() == 2 * MIB
    warm = allocator.stats()["num_device_alloc"]
    for _ in range(50):
        assert step() == 2 * MIB
    assert allocator.stats()["num_device_alloc"] == warm
    assert blocks(allocator) == 0


def test_memory_is_counted_as_cupys(allocator):
    x = cupy.empty(1_000_000, dtype=cupy.uint8)
    assert allocator.tenants()["cupy"]["requested_bytes"] == 1_000_000
    del x
    assert blocks(allocator) == 0


def test_memory_belongs_to_the_current_stream(allocator, streams):
    with streams[0]:
        x = cupy.empty(1000)
    (segment,) = allocator.snapshot()["segments"]
    assert segment["stream"] == streams[0].ptr
    del x


def test_an_empty_array_takes_nothing(allocator):
    assert cupy.empty(0).data.ptr == 0
    assert blocks(allocator) == 0


def test_without_memory_it_raises_ours_and_goes_on(device):
    with adapter.using(allotment.Allocator(device, limit=64 * MIB)):
        with pytest.raises(MemoryError) as caught:
            cupy.empty(256 * MIB, dtype=cupy.uint8)
        assert isinstance(caught.value, OutOfMemoryError)
        assert caught.value.facts.requested == 256 * MIB
        assert caught.value.facts.limit == 64 * MIB
        assert int(cupy.ones(1000).sum()) == 1000


def test_a_device_that_is_full_raises_ours_too(allocator):
    with pytest.raises(OutOfMemoryError) as caught:
        cupy.empty(1 << 45, dtype=cupy.uint8)
    assert caught.value.facts.device_free > 0


def test_uninstall_restores_the_previous_state_and_arrays_stay(allocator):
    x = cupy.arange(1000)
    adapter.uninstall()
    assert type(cupy.empty(10).data.mem).__name__ == "PooledMemory"
    assert int(x.sum()) == 499_500
    assert blocks(allocator) == 1
    del x
    assert blocks(allocator) == 0


def test_each_thread_has_its_own_current_stream(allocator):
    def work(number):
        with cupy.cuda.Stream(non_blocking=True) as stream:
            total = 0
            for _ in range(50):
                x = cupy.full(10_000, number)
                total += int((x * 2).sum())
            stream.synchronize()
        return total

    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(work, range(4))) == [50 * 2 * 10_000 * number for number in range(4)]
    assert blocks(allocator) == 0


# Two streams and one array.


def write_late_and_reuse(device, streams, record):
    """Return (whether the same memory was allocated again, what the second owner then finds in it)."""
    own, side = streams
    with own:
        first = cupy.empty(MIB, dtype=cupy.uint8)
    address = first.data.ptr
    with device.hold(side.ptr):
        first.data.memset_async(7, MIB, side)
        if record:
            adapter.record_stream(first[100:200], side)
        del first
        with own:
            second = cupy.empty(MIB, dtype=cupy.uint8)
        second.data.memset_async(2, MIB, own)
        own.synchronize()
    side.synchronize()
    return second.data.ptr == address, set(np.unique(cupy.asnumpy(second)).tolist())


def test_an_array_written_late_is_not_reused_when_recorded(device, allocator, streams):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, streams, record=True) == (False, {2})
    allocator.inspection.check_invariants()


def test_without_record_stream_the_same_program_is_corrupted(device, allocator, streams):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, streams, record=False) == (True, {7})


def test_memory_of_cupys_own_pool_cannot_be_recorded(allocator, streams):
    adapter.uninstall()
    with pytest.raises(AddressError):
        adapter.record_stream(cupy.empty(1000), streams[1])


# Pinned memory.


def test_pinned_memory_is_kept_and_copied_right(allocator):
    values = np.arange(10_000, dtype=np.float32)
    for _ in range(3):
        pointer = cupy.cuda.alloc_pinned_memory(values.nbytes)
        host = np.frombuffer(pointer, np.float32, values.size)
        host[...] = values
        x = cupy.empty(values.size, dtype=cupy.float32)
        x.set(host)
        np.testing.assert_array_equal(cupy.asnumpy(x), values)
        del host, pointer
    stats = adapter.pinned_stats()[0]
    assert stats["active_requests.allocated"] > stats["num_host_alloc"]
    assert stats["active_requests.current"] == 0
    np.testing.assert_array_equal(cupy.asnumpy(cupy.asarray(values)), values)


def test_pinned_memory_that_is_still_being_copied_is_not_reused(device, allocator, streams):
    stream = streams[0]
    pointer = cupy.cuda.alloc_pinned_memory(4096)
    address = pointer.ptr
    host = np.frombuffer(pointer, np.uint8, 4096)
    host[...] = 5
    x = cupy.zeros(4096, dtype=cupy.uint8)
    cupy.cuda.runtime.deviceSynchronize()
    with device.hold(stream.ptr):
        x.data.copy_from_host_async(host.ctypes.data, 4096, stream)
        adapter.record_stream(host, stream)
        del host, pointer
        other = cupy.cuda.alloc_pinned_memory(4096)
        assert other.ptr != address
        np.frombuffer(other, np.uint8, 4096)[...] = 9
    stream.synchronize()
    assert set(cupy.asnumpy(x).tolist()) == {5}
    assert cupy.cuda.alloc_pinned_memory(4096).ptr == address


def test_each_threads_default_stream_is_a_stream_of_its_own(allocator):
    with cupy.cuda.Stream.ptds:
        x = cupy.full(1_000_000, 3, dtype=cupy.uint8)
        address = x.data.ptr
        total = int(x.sum())
        del x
    found = []

    def work():
        with cupy.cuda.Stream.ptds:
            y = cupy.full(1_000_000, 4, dtype=cupy.uint8)
            found.append((y.data.ptr, int(y.sum())))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert total == 3_000_000
    assert found[0][1] == 4_000_000 and found[0][0] != address
    allocator.inspection.check_invariants()
