"""The Numba adapter on a stand-in for numba-cuda."""

import pickle
import threading
from types import SimpleNamespace

import pytest

import allotment
from allotment import Allocator
from allotment.errors import AddressError, OutOfMemoryError
from helpers.adapter_on import adapter_on
from helpers.cuda_like_device import CudaLikeDevice
from helpers.stub_numba import MemoryPointer, NativeManager, StubNumba

MIB = 1 << 20


@pytest.fixture
def numba():
    return StubNumba()


@pytest.fixture
def adapter(numba):
    with adapter_on(numba.modules, "allotment.numba") as adapter:
        yield adapter


@pytest.fixture
def device():
    return CudaLikeDevice()


@pytest.fixture
def allocator(device):
    return allotment.Allocator(device)


def live(allocator):
    return allocator.tenants().get("numba", {"blocks": 0})["blocks"]


def test_the_module_is_what_numbas_environment_variable_wants(adapter):
    manager = adapter._numba_memory_manager(context=None)
    assert manager.interface_version == 1


def test_the_manager_named_by_the_environment_uses_the_shared_allocator(monkeypatch, adapter, numba, allocator):
    monkeypatch.setattr("allotment._adapters.frameworks.current_caching", {"cuda:0": allocator}.__getitem__)
    numba.driver._memory_manager = adapter._numba_memory_manager
    array = numba.context().array(1000)
    assert live(allocator) == 1
    del array


def test_memory_comes_from_the_allocator_and_returns_to_it(adapter, numba, allocator):
    adapter.install(allocator)
    array = numba.context().array(1000)
    address = array.gpu_data.handle
    assert allocator.tenants()["numba"]["requested_bytes"] == 1000
    del array
    assert live(allocator) == 0
    assert numba.context().array(1000).gpu_data.handle == address


def test_contexts_that_exist_change_over_and_back(adapter, numba, allocator):
    context = numba.context()
    assert type(context.memory_manager) is NativeManager
    adapter.install(allocator)
    adapter.install(allocator)
    array = context.array(1000)
    adapter.uninstall()
    adapter.uninstall()
    assert type(context.memory_manager) is NativeManager
    assert numba.driver._memory_manager is NativeManager
    assert live(allocator) == 1
    del array
    assert live(allocator) == 0


def test_installing_initializes_no_driver(adapter, numba, allocator):
    adapter.install(allocator)
    assert not numba.driver.driver.is_initialized


def test_memory_info_is_the_devices(adapter, numba, device, allocator):
    adapter.install(allocator)
    context = numba.context()
    array = context.array(30 * MIB)
    info = context.memory_manager.get_memory_info()
    assert (info.free, info.total) == device.memory_info()
    assert info.free < info.total
    assert context.memory_manager.deallocations.memory_capacity == info.total
    del array


def test_without_memory_what_was_put_off_is_freed_first(adapter, numba, device):
    allocator = allotment.Allocator(device, limit=64 * MIB)
    adapter.install(allocator)
    context = numba.context()
    put_off = [context.array(40 * MIB)]
    context.memory_manager.deallocations.on_clear.append(put_off.clear)
    assert context.array(40 * MIB).gpu_data.handle


def test_without_memory_it_raises_ours(adapter, numba, device):
    adapter.install(allotment.Allocator(device, limit=32 * MIB))
    with pytest.raises(MemoryError) as caught:
        numba.context().array(100 * MIB)
    assert isinstance(caught.value, OutOfMemoryError)
    assert caught.value.facts.requested == 100 * MIB


def test_reset_releases_the_cache_and_keeps_arrays(adapter, numba, device, allocator):
    adapter.install(allocator)
    context = numba.context()
    kept = context.array(30 * MIB)
    context.array(60 * MIB)
    context.memory_manager.reset()
    assert allocator.stats()["reserved_bytes.all.current"] < 60 * MIB
    assert live(allocator) == 1
    del kept


def test_recorded_memory_is_reused_when_the_other_stream_is_done(adapter, numba, device, allocator):
    adapter.install(allocator)
    context = numba.context()
    stream = device.stream_create()
    array = context.array(4 * MIB)
    view = SimpleNamespace(gpu_data=array.gpu_data.view(4096))
    address = array.gpu_data.handle
    work = device.hold(stream)
    adapter.record_stream(view, SimpleNamespace(handle=stream))
    del array, view
    early = context.array(4 * MIB)
    assert early.gpu_data.handle != address
    work.release()
    assert context.array(4 * MIB).gpu_data.handle == address


def test_memory_from_elsewhere_cannot_be_recorded(adapter, numba, allocator):
    adapter.install(allocator)
    foreign = MemoryPointer(numba.context(), 0x1234, 100, owner=object())
    with pytest.raises(AddressError):
        adapter.record_stream(SimpleNamespace(gpu_data=foreign), 0)


class SharedMemory:
    """Stands for an allocator that shares memory."""

    def __init__(self, allocator):
        self.allocator = self
        self.device = allocator.device
        self._block_around = allocator._block_around
        self.shared = []

    def share(self, block):
        self.shared.append(block)
        return SIMULATED.share(BLOCK)


SIMULATED = Allocator("sim:1GiB")
BLOCK = SIMULATED.malloc(8192)


@pytest.fixture
def sharing(monkeypatch, adapter, numba, allocator):
    adapter.install(allocator)
    manager = numba.context().memory_manager
    memory = manager.memalloc(4096)
    stand_in = SharedMemory(allocator)
    monkeypatch.setattr(type(manager), "tenant", stand_in)
    yield manager, memory, stand_in.shared
    SIMULATED.share(BLOCK).close()


def test_a_context_that_was_made_elsewhere_has_the_drivers_device(adapter, numba, allocator):
    adapter.install(allocator)
    context = numba.context()
    context.device = 0  # the driver's own, a number without an `id`
    array = context.array(1000)
    assert live(allocator) == 1
    del array


def test_pinned_memory_is_kept_and_what_is_mapped_is_left_to_numba(adapter, numba, device, allocator):
    adapter.install(allocator)
    manager = numba.context().memory_manager
    memory = manager.memhostalloc(1000)
    address = memory.handle
    assert list(device.pinned.values()) == [1024]
    del memory
    assert manager.memhostalloc(1000).handle == address
    assert manager.memhostalloc(5, mapped=True) == manager.memhostalloc(5, wc=True) == "native pinned 5"


@pytest.mark.threads
def test_with_streams_of_threads_memory_is_for_the_calling_threads(adapter, numba, allocator):
    numba.driver.config = SimpleNamespace(CUDA_PER_THREAD_DEFAULT_STREAM=1)
    adapter.install(allocator)
    context = numba.context()
    own = context.array(4 * MIB).gpu_data.handle
    found = []
    thread = threading.Thread(target=lambda: found.append(context.array(4 * MIB).gpu_data.handle))
    thread.start()
    thread.join()
    assert found and found != [own]
    assert context.array(4 * MIB).gpu_data.handle == own


def test_a_handle_for_another_process_counts_from_the_block(sharing, adapter):
    manager, memory, shared = sharing
    handle = manager.get_ipc_handle(memory.view(100))
    assert shared == [memory.handle]
    assert (handle.offset, handle.size, handle.source_info) == (100, 3996, {"gpu": 0})
    again = pickle.loads(pickle.dumps(handle))
    assert isinstance(again, adapter.IpcHandle)
    assert again.base is None
    assert again.handle.reserved == handle.handle.reserved
    assert (again.offset, again.size, again.source_info) == (100, 3996, {"gpu": 0})


def test_an_array_that_another_library_made_of_our_memory_has_a_handle(sharing, numba):
    manager, memory, shared = sharing
    foreign = MemoryPointer(numba.context(), memory.handle + 512, 100, owner=object())
    assert manager.get_ipc_handle(foreign).offset == 512
    assert shared == [memory.handle]


def test_memory_from_elsewhere_has_no_handle(sharing, numba):
    manager, _, _ = sharing
    with pytest.raises(AddressError, match="cannot be shared"):
        manager.get_ipc_handle(MemoryPointer(numba.context(), 0x1234, 100, owner=object()))


def test_a_handle_is_opened_once_and_closed_once(sharing, numba):
    manager, memory, _ = sharing
    handle = pickle.loads(pickle.dumps(manager.get_ipc_handle(memory.view(100))))
    with pytest.raises(ValueError, match="not opened"):
        handle.close()
    opened = handle.open(numba.context())
    assert (opened.handle, opened.size) == (BLOCK + 100, 3996)
    with pytest.raises(ValueError, match="already opened"):
        handle.open(numba.context())
    handle.close()
