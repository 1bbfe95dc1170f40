"""The cuda.core adapter on a stand-in for cuda.core."""

import threading
from types import SimpleNamespace

import pytest

import allotment
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment._devices.per_thread import thread_stream
from allotment.errors import OutOfMemoryError, RequestError, UnsupportedError
from helpers import stub_cuda_core
from helpers.adapter_on import adapter_on
from helpers.cuda_like_device import AskedDevice, CudaLikeDevice
from helpers.stub_cuda_core import Stream

MIB = 1 << 20


@pytest.fixture
def adapter():
    with adapter_on(stub_cuda_core.modules(), "allotment.cuda_core") as adapter:
        yield adapter


@pytest.fixture
def device():
    return CudaLikeDevice()


@pytest.fixture
def allocator(device):
    return allotment.Allocator(device)


@pytest.fixture
def resource(adapter, allocator):
    return adapter.MemoryResource(allocator)


@pytest.fixture
def streams(device):
    return [Stream(device.stream_create()) for _ in range(2)]


def test_buffers_come_from_the_allocator_and_return_to_it(resource, allocator, streams):
    buffer = resource.allocate(1000, stream=streams[0])
    assert allocator.tenants()["cuda.core"]["requested_bytes"] == 1000
    (segment,) = allocator.snapshot()["segments"]
    assert segment["stream"] == streams[0].handle
    buffer.close()
    assert allocator.tenants().get("cuda.core", {"blocks": 0})["blocks"] == 0
    assert resource.allocate(1000, stream=streams[0]).handle == buffer.handle


def test_without_a_stream_memory_is_for_the_default_stream(resource, allocator):
    buffer = resource.allocate(1000)
    (segment,) = allocator.snapshot()["segments"]
    assert segment["stream"] == 0
    buffer.close()


def test_a_stream_of_another_library_is_taken(resource, allocator, streams):
    resource.allocate(1000, stream=SimpleNamespace(ptr=streams[0].handle))
    (segment,) = allocator.snapshot()["segments"]
    assert segment["stream"] == streams[0].handle


def test_a_buffer_closed_on_another_stream_waits_for_that(resource, device, streams):
    own, other = streams
    buffer = resource.allocate(4 * MIB, stream=own)
    work = device.hold(other.handle)
    buffer.close(other)
    early = resource.allocate(4 * MIB, stream=own)
    assert early.handle != buffer.handle
    work.release()
    assert resource.allocate(4 * MIB, stream=own).handle == buffer.handle


def test_a_buffer_closed_on_its_own_stream_waits_for_nothing(resource, device, streams):
    buffer = resource.allocate(4 * MIB, stream=streams[0])
    work = device.hold(streams[0].handle)
    buffer.close()
    assert resource.allocate(4 * MIB, stream=streams[0]).handle == buffer.handle
    work.release()


@pytest.mark.threads
def test_the_per_thread_stream_is_another_stream_in_each_thread(resource, streams):
    per_thread = Stream(2)
    buffer = resource.allocate(4 * MIB, stream=per_thread)
    own = buffer.handle
    buffer.close()
    found = []
    thread = threading.Thread(target=lambda: found.append(resource.allocate(4 * MIB, stream=per_thread).handle))
    thread.start()
    thread.join()
    assert found and found != [own]
    assert resource.allocate(4 * MIB, stream=per_thread).handle == own


def test_a_buffer_that_ends_on_the_per_thread_stream_waits_for_it(resource, device, streams):
    buffer = resource.allocate(4 * MIB, stream=streams[0])
    work = device.hold(thread_stream())
    buffer.close(Stream(2))
    assert resource.allocate(4 * MIB, stream=streams[0]).handle != buffer.handle
    work.release()
    assert resource.allocate(4 * MIB, stream=streams[0]).handle == buffer.handle


def test_recorded_memory_is_reused_when_the_other_stream_is_done(adapter, resource, device, streams):
    own, other = streams
    buffer = resource.allocate(4 * MIB, stream=own)
    work = device.hold(other.handle)
    adapter.record_stream(buffer, other)
    buffer.close()
    assert resource.allocate(4 * MIB, stream=own).handle != buffer.handle
    work.release()


def test_a_buffer_of_another_resource_cannot_be_recorded(adapter):
    with pytest.raises(TypeError, match="must come from allotment"):
        adapter.record_stream(SimpleNamespace(memory_resource=None), 0)


def test_without_memory_it_raises_ours(adapter, device, streams):
    resource = adapter.MemoryResource(allotment.Allocator(device, limit=32 * MIB))
    with pytest.raises(MemoryError) as caught:
        resource.allocate(100 * MIB, stream=streams[0])
    assert isinstance(caught.value, OutOfMemoryError)


def test_nothing_has_no_address(resource, allocator, streams):
    buffer = resource.allocate(0, stream=streams[0])
    assert buffer.handle == 0
    buffer.close()
    assert allocator.snapshot()["segments"] == []


def test_a_resource_says_what_it_is(adapter, monkeypatch, allocator):
    monkeypatch.setattr("allotment.cuda_core.current_caching", {"cuda:0": allocator}.__getitem__)
    resource = adapter.MemoryResource()
    assert resource.allocator is allocator
    assert (resource.is_device_accessible, resource.is_host_accessible, resource.device_id) == (True, False, 0)


def test_an_allocator_elsewhere_is_refused(adapter):
    with pytest.raises(RequestError, match=r"cuda\.core works with CUDA memory"):
        adapter.MemoryResource(allotment.Allocator("host"))


def test_the_stream_of_a_free_decides_whether_it_is_inside_a_capture(adapter):
    device = AskedDevice()
    allocator = allotment.Allocator(device, settings="compat:2.15")
    own, user, captured = (Stream(device.stream_create()) for _ in range(3))
    buffer = adapter.MemoryResource(allocator).allocate(1000, stream=own)
    adapter.record_stream(buffer, user)
    allocator.pools.begin_allocate_to_pool(next_graph_pool_id(), capture=device.capture_begin(captured.handle))
    device.asked.clear()
    buffer.close()
    assert own.handle in device.asked


def test_a_buffer_of_another_process_returns_to_it(adapter):
    allocator = allotment.Allocator("sim:1GiB")
    handle = allocator.share(allocator.malloc(4096))
    buffer = adapter.open_shared(handle, stream=Stream(0))
    assert (buffer.size, buffer.memory_resource.device_id) == (4096, 0)
    with pytest.raises(UnsupportedError, match="another process"):
        buffer.memory_resource.allocate(1)
    buffer.close()
    handle.close()
    allocator.inspection.check_invariants()
