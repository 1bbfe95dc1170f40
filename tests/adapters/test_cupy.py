"""The CuPy adapter on a stand-in for CuPy."""

import ctypes
import gc
import threading
from types import SimpleNamespace

import numpy as np
import pytest

import allotment
from allotment._allocators.caching.pool import next_graph_pool_id
from allotment.errors import AddressError, OutOfMemoryError, RequestError
from helpers.adapter_on import adapter_on
from helpers.cuda_like_device import AskedDevice, CudaLikeDevice
from helpers.stub_cupy import StubCupy

MIB = 1 << 20


@pytest.fixture
def cupy():
    return StubCupy()


@pytest.fixture
def adapter(cupy):
    with adapter_on(cupy.modules, "allotment.cupy") as adapter:
        yield adapter
        adapter.uninstall()


@pytest.fixture
def device():
    return CudaLikeDevice()


@pytest.fixture
def allocator(device):
    return allotment.Allocator(device)


def live(allocator, name="cupy"):
    return allocator.tenants().get(name, {"blocks": 0})["blocks"]


def only_block(allocator):
    (block,) = [
        (segment["stream"], block["address"])
        for segment in allocator.snapshot()["segments"]
        for block in segment["blocks"]
        if block["state"] == "active_allocated"
    ]
    return block


def test_memory_comes_from_the_allocator_and_returns_to_it(adapter, cupy, allocator):
    adapter.install(allocator)
    memory = cupy.alloc(1000)
    assert allocator.tenants()["cupy"]["requested_bytes"] == 1000
    assert only_block(allocator) == (0, memory.ptr)
    address = memory.ptr
    del memory
    assert live(allocator) == 0
    assert cupy.alloc(1000).ptr == address


def test_memory_belongs_to_the_current_stream(adapter, cupy, device, allocator):
    adapter.install(allocator)
    cupy.stream = device.stream_create()
    memory = cupy.alloc(1000)
    assert only_block(allocator) == (cupy.stream, memory.ptr)


def test_the_legacy_stream_is_the_default_stream(adapter, cupy, allocator):
    adapter.install(allocator)
    cupy.stream = 1
    memory = cupy.alloc(1000)
    assert only_block(allocator) == (0, memory.ptr)


def test_each_device_has_its_own_allocator(monkeypatch, adapter, cupy, allocator):
    shared = allotment.Allocator(CudaLikeDevice(index=1))
    monkeypatch.setattr("allotment._adapters.frameworks.current_caching", {"cuda:1": shared}.__getitem__)
    adapter.install(allocator)
    first = cupy.alloc(512)
    cupy.device = 1
    second = cupy.alloc(512)
    assert (live(allocator), live(shared)) == (1, 1)
    cupy.device = 0
    del second
    assert (live(allocator), live(shared)) == (1, 0)
    del first


def test_without_memory_it_raises_ours_with_the_facts(adapter, cupy):
    allocator = allotment.Allocator(CudaLikeDevice(), limit=32 * MIB)
    adapter.install(allocator)
    with pytest.raises(MemoryError) as caught:
        cupy.alloc(100 * MIB)
    assert isinstance(caught.value, OutOfMemoryError)
    assert caught.value.facts.requested == 100 * MIB
    assert cupy.alloc(MIB).ptr
    allocator.inspection.check_invariants()


@pytest.mark.threads
@pytest.mark.parametrize("c_functions_raise", [True, False])
def test_the_per_thread_stream_is_another_stream_in_each_thread(adapter, cupy, allocator, c_functions_raise):
    cupy.c_functions_raise = c_functions_raise
    adapter.install(allocator)
    cupy.stream = 2
    own = cupy.alloc(4 * MIB).ptr
    assert cupy.alloc(4 * MIB).ptr == own
    found = []
    thread = threading.Thread(target=lambda: found.append(cupy.alloc(4 * MIB).ptr))
    thread.start()
    thread.join()
    assert found and found != [own], "memory freed on one thread's stream was reused on another's"
    assert cupy.alloc(4 * MIB).ptr == own
    allocator.inspection.check_invariants()


def test_an_allocator_elsewhere_is_refused_and_nothing_changes(adapter, cupy):
    with pytest.raises(RequestError, match="host"):
        adapter.install(allotment.Allocator("host"))
    assert cupy.alloc(5) == "native 5"


def test_the_history_knows_the_python_code_that_asked(adapter, cupy, allocator):
    allocator.record_history()
    adapter.install(allocator)
    memory = cupy.alloc(1000)
    (entry,) = [e for e in allocator.snapshot()["device_traces"][0] if e["action"] == "alloc"]
    assert entry["tenant"] == "cupy"
    assert any(frame["name"].endswith("asked") for frame in entry["frames"])
    del memory


# Going back.


def test_uninstall_restores_the_previous_allocator(adapter, cupy, allocator):
    adapter.install(allocator)
    adapter.install(allocator)
    memory = cupy.alloc(1000)
    adapter.uninstall()
    adapter.uninstall()
    assert cupy.alloc(5) == "native 5"
    assert cupy.alloc_pinned(5) == "native pinned 5"
    assert live(allocator) == 1
    del memory
    assert live(allocator) == 0


def test_memory_keeps_its_allocator_alive(adapter, cupy, device):
    adapter.install(allotment.Allocator(device))
    memory = cupy.alloc(1000)
    adapter.uninstall()
    gc.collect()
    assert device.memory_info()[0] < device.memory_info()[1]
    del memory
    gc.collect()
    assert device.memory_info()[0] == device.memory_info()[1]


def test_using_holds_inside_its_block(adapter, cupy, allocator):
    with adapter.using(allocator):
        memory = cupy.alloc(1000)
    assert cupy.alloc(5) == "native 5"
    assert live(allocator) == 1
    del memory
    assert live(allocator) == 0


# CuPys that offer less.


def forget_capsule(cupy):
    cupy.modules["cupy_backends.cuda.stream"].__pyx_capi__.clear()


def change_signature(cupy):
    cupy.modules["cupy_backends.cuda.stream"].__pyx_capi__["get_stream_ptr"] = cupy.capsule(b"int (void)")


def swallow_exceptions(cupy):
    cupy.c_functions_raise = False


@pytest.mark.parametrize("lessen", [forget_capsule, change_signature, swallow_exceptions])
def test_a_cupy_that_offers_less_is_served_by_python_functions(adapter, cupy, device, lessen):
    lessen(cupy)
    allocator = allotment.Allocator(device, limit=32 * MIB)
    adapter.install(allocator)
    cupy.stream = device.stream_create()
    memory = cupy.alloc(1000)
    assert type(memory.mem).__name__ == "PythonFunctionAllocatorMemory"
    assert only_block(allocator) == (cupy.stream, memory.ptr)
    with pytest.raises(OutOfMemoryError):
        cupy.alloc(100 * MIB)
    del memory
    assert live(allocator) == 0


@pytest.mark.parametrize("lessen", [None, forget_capsule])
def test_the_current_stream_of_a_free_decides_whether_it_is_inside_a_capture(adapter, cupy, lessen):
    if lessen is not None:
        lessen(cupy)
    device = AskedDevice()
    allocator = allotment.Allocator(device, settings="compat:2.15")
    adapter.install(allocator)
    own, user, current, captured = (device.stream_create() for _ in range(4))
    cupy.stream = own
    memory = cupy.alloc(1000)
    allocator.record_stream(memory.ptr, user)
    allocator.pools.begin_allocate_to_pool(next_graph_pool_id(), capture=device.capture_begin(captured))
    device.asked.clear()
    cupy.stream = current
    del memory
    assert current in device.asked


def test_this_stand_in_is_served_by_c_functions(adapter, cupy, allocator):
    adapter.install(allocator)
    assert type(cupy.alloc(1).mem).__name__ == "CFunctionAllocatorMemory"


# Streams.


def test_recorded_memory_is_reused_when_the_other_stream_is_done(adapter, cupy, device, allocator):
    adapter.install(allocator)
    stream = device.stream_create()
    array = cupy.array(4 * MIB)
    view = SimpleNamespace(data=type(array.data)(array.data.mem, 4096))
    address = array.data.ptr
    work = device.hold(stream)
    adapter.record_stream(view, SimpleNamespace(ptr=stream))
    del array, view
    early = cupy.array(4 * MIB)
    assert early.data.ptr != address
    work.release()
    assert cupy.array(4 * MIB).data.ptr == address


def test_memory_made_in_using_can_be_recorded_afterwards(adapter, cupy, device, allocator):
    with adapter.using(allocator):
        array = cupy.array(4 * MIB)
    adapter.record_stream(array, device.stream_create())
    with pytest.raises(AddressError):
        adapter.record_stream(SimpleNamespace(data=SimpleNamespace(mem=SimpleNamespace(ptr=1, device_id=0))), 0)


# Pinned memory.


def test_pinned_memory_is_kept_and_counted(adapter, cupy, device, allocator):
    adapter.install(allocator)
    pointer = cupy.alloc_pinned(1000)
    address = pointer.ptr
    assert pointer.mem.size == 1000
    assert adapter.pinned_stats()[0]["active_bytes.current"] == 1024
    del pointer
    assert cupy.alloc_pinned(1000).ptr == address
    assert list(device.pinned.values()) == [1024]


def test_pinned_memory_that_no_stream_was_recorded_for_is_free_at_once(adapter, cupy, device, allocator):
    adapter.install(allocator)
    cupy.stream = device.stream_create()
    device.hold(cupy.stream)
    address = cupy.alloc_pinned(1000).ptr
    cupy.device, cupy.stream = 1, 99  # which the first device does not know
    assert adapter.pinned_stats()[0]["active_requests.current"] == 0
    cupy.device = 0
    assert cupy.alloc_pinned(1000).ptr == address
    assert device._events == {}, "an event was recorded"


def test_pinned_memory_waits_for_recorded_streams(adapter, cupy, device, allocator):
    adapter.install(allocator)
    stream = device.stream_create()
    pointer = cupy.alloc_pinned(1000)
    address = pointer.ptr
    copy = device.hold(stream)
    adapter.record_stream(pointer, stream)
    del pointer
    other = cupy.alloc_pinned(1000)
    assert other.ptr != address
    copy.release()


def test_a_numpy_array_in_pinned_memory_is_recognised(adapter, cupy, device, allocator):
    adapter.install(allocator)
    pointer = cupy.alloc_pinned(64)
    owner = (ctypes.c_char * 64)()  # with the owners that NumPy keeps, a chain that ends in CuPy's pointer
    owner.mem = pointer.mem
    array = np.frombuffer(owner, np.uint8)[8:16]
    stream = device.stream_create()
    adapter.record_stream(array, stream)
    copy, address = device.hold(stream), pointer.ptr
    del pointer, owner, array
    gc.collect()
    assert cupy.alloc_pinned(64).ptr != address
    copy.release()


def test_pinned_memory_can_be_left_to_cupy(adapter, cupy, allocator):
    adapter.install(allocator)
    adapter.install(allocator, pinned=False)
    assert cupy.alloc_pinned(5) == "native pinned 5"
    assert adapter.pinned_stats() == {}
