"""cuda.core's buffers from our allocator."""

import pytest

import allotment
from allotment.errors import OutOfMemoryError
from helpers.peer import Peer

core = pytest.importorskip("cuda.core", reason="cuda.core is not installed")
adapter = pytest.importorskip("allotment.cuda_core", reason="cuda.core cannot be imported", exc_type=ImportError)

pytestmark = pytest.mark.gpu

MIB = 1 << 20
RUNS = 100


@pytest.fixture
def core_device(device):
    try:
        found = core.Device(0)
        found.set_current()
    except Exception as error:
        pytest.skip(f"cuda.core cannot use the driver: {error}")
    return found


@pytest.fixture
def streams(core_device):
    """Return the stream that memory is for, and another."""
    return [core_device.create_stream() for _ in range(2)]


@pytest.fixture
def resource(core_device, allocator):
    return adapter.MemoryResource(allocator)


def handle(stream):
    return int(stream.handle)


def blocks(allocator):
    return allocator.tenants().get("cuda.core", {"blocks": 0})["blocks"]


def test_values_are_right(device, resource, streams):
    stream = streams[0]
    first, second = (resource.allocate(MIB, stream=stream) for _ in range(2))
    first.fill(5, stream=stream)
    first.copy_to(second, stream=stream)
    stream.sync()
    assert device.copy_to_host(int(second.handle), MIB) == b"\5" * MIB


def test_a_copy_without_a_destination_comes_from_the_same_resource(device, resource, allocator, streams):
    first = resource.allocate(1000, stream=streams[0])
    first.fill(5, stream=streams[0])
    second = first.copy_to(stream=streams[0])
    streams[0].sync()
    assert device.copy_to_host(int(second.handle), 1000) == b"\5" * 1000
    assert blocks(allocator) == 2


def test_memory_that_is_closed_is_used_again(resource, allocator, streams):
    buffer = resource.allocate(MIB, stream=streams[0])
    address = int(buffer.handle)
    assert allocator.tenants()["cuda.core"]["requested_bytes"] == MIB
    buffer.close()
    assert blocks(allocator) == 0
    buffer = resource.allocate(MIB, stream=streams[0])
    assert int(buffer.handle) == address
    del buffer
    assert blocks(allocator) == 0


def test_buffers_say_what_they_are(resource, streams):
    buffer = resource.allocate(1000, stream=streams[0])
    assert buffer.is_device_accessible
    assert not buffer.is_host_accessible
    assert buffer.device_id == 0
    assert buffer.memory_resource is resource
    assert buffer.__dlpack_device__() == (2, 0)


def test_the_default_stream_serves_where_none_is_named(device, resource, allocator):
    buffer = resource.allocate(1000)
    (segment,) = allocator.snapshot()["segments"]
    assert segment["stream"] == 0
    buffer.close()
    assert blocks(allocator) == 0


def test_a_device_can_have_it_as_its_resource(core_device, resource, allocator, streams):
    before = core_device.memory_resource
    core_device.memory_resource = resource
    try:
        buffer = core_device.allocate(1000, stream=streams[0])
        assert blocks(allocator) == 1
        buffer.close()
    finally:
        core_device.memory_resource = before


def test_without_memory_it_raises_ours(core_device, device, streams):
    resource = adapter.MemoryResource(allotment.Allocator(device, limit=64 * MIB))
    with pytest.raises(MemoryError) as caught:
        resource.allocate(256 * MIB, stream=streams[0])
    assert isinstance(caught.value, OutOfMemoryError)
    assert caught.value.facts.requested == 256 * MIB


def test_memory_can_be_for_the_per_thread_stream_and_end_on_it(resource, allocator, streams):
    buffer = resource.allocate(1000, stream=core.PER_THREAD_DEFAULT_STREAM)
    buffer.fill(5, stream=core.PER_THREAD_DEFAULT_STREAM)
    buffer.close()
    buffer = resource.allocate(1000, stream=streams[0])
    buffer.close(core.PER_THREAD_DEFAULT_STREAM)
    assert blocks(allocator) == 0
    allocator.inspection.check_invariants()


# Two streams and one buffer.


def write_late_and_reuse(device, resource, streams, end):
    """Return (whether the same memory was allocated again, what the second owner then finds in it)."""
    own, side = streams
    first = resource.allocate(MIB, stream=own)
    address = int(first.handle)
    with device.hold(handle(side)):
        first.fill(7, stream=side)
        end(first, side)
        second = resource.allocate(MIB, stream=own)
        second.fill(2, stream=own)
        own.sync()
    side.sync()
    found = set(device.copy_to_host(int(second.handle), MIB))
    is_same = int(second.handle) == address
    second.close()
    return is_same, found


def close_on_side(buffer, side):
    buffer.close(side)


def record_and_close(buffer, side):
    adapter.record_stream(buffer, side)
    buffer.close()


def just_close(buffer, side):
    buffer.close()


@pytest.mark.parametrize("end", [close_on_side, record_and_close])
def test_a_buffer_written_late_is_not_reused(device, resource, streams, end):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, resource, streams, end) == (False, {2})


def test_a_buffer_that_is_only_closed_on_its_own_stream_is_corrupted(device, resource, streams):
    for _ in range(RUNS):
        assert write_late_and_reuse(device, resource, streams, just_close) == (True, {7})


def test_another_process_opens_a_buffer(device, resource, streams):
    buffer = resource.allocate(4096, stream=streams[0])
    device.memset_async(int(buffer.handle), 6, 4096, handle(streams[0]))
    shared = resource.share(buffer)
    with Peer() as peer:
        seen = peer.run(
            """
            from cuda.core import Device
            import allotment.cuda_core
            from allotment._devices.cuda.device import CudaDevice
            gpu = Device(); gpu.set_current()
            stream = gpu.create_stream()
            opened = allotment.cuda_core.open_shared(handle, stream=stream)
            stream.sync()
            result = opened.size, set(CudaDevice(0).copy_to_host(int(opened.handle), opened.size))
            opened.close()
            """,
            handle=shared,
        )
    assert seen == (4096, {6})
    shared.close()
