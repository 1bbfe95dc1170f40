"""What the adapters share, and their errors without their framework."""

import gc
import importlib
import sys
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest

import allotment
from allotment._adapters.frameworks import DeviceTenants, stream_handle
from allotment._devices.per_thread import is_own
from allotment.errors import AddressError, RequestError
from helpers.cuda_like_device import CudaLikeDevice

FRAMEWORKS = {
    "allotment.cupy": ("cupy", "pip install cupy-cuda13x"),
    "allotment.numba": ("numba.cuda", "pip install numba-cuda"),
    "allotment.cuda_core": ("cuda.core", "pip install cuda-core"),
}


@pytest.fixture
def allocator():
    return allotment.Allocator(CudaLikeDevice())


@pytest.mark.parametrize("adapter", FRAMEWORKS)
def test_an_adapter_without_its_framework_names_what_is_missing_and_how_to_get_it(monkeypatch, adapter):
    framework, remedy = FRAMEWORKS[adapter]
    for name in (adapter, framework.partition(".")[0], framework):
        monkeypatch.delitem(sys.modules, name, raising=False)
    monkeypatch.setitem(sys.modules, framework, None)
    with pytest.raises(ImportError, match=f"{adapter} needs {framework}") as caught:
        importlib.import_module(adapter)
    assert remedy in str(caught.value)


# Streams by number.


@pytest.mark.parametrize(
    "stream",
    [
        7,
        SimpleNamespace(__cuda_stream__=lambda: (0, 7)),
        SimpleNamespace(cuda_stream=7),
        SimpleNamespace(ptr=7),
        SimpleNamespace(handle=7),
    ],
    ids=["number", "protocol", "pytorch", "cupy", "handle"],
)
def test_streams_of_all_frameworks_have_one_number(stream):
    assert stream_handle(stream) == 7


def test_the_legacy_default_stream_is_the_default_stream():
    assert stream_handle(1) == stream_handle(0) == 0


@pytest.mark.threads
def test_the_per_thread_default_stream_has_a_number_for_each_thread():
    with ThreadPoolExecutor(1) as one, ThreadPoolExecutor(1) as other:
        numbers = [stream_handle(2), one.submit(stream_handle, 2).result(), other.submit(stream_handle, 2).result()]
        assert len(set(numbers)) == 3
        assert one.submit(stream_handle, 2).result() == numbers[1]
        assert one.submit(is_own, numbers[1]).result() and not is_own(numbers[1])


def test_anything_but_a_stream_is_refused():
    with pytest.raises(TypeError, match="not str"):
        stream_handle("left")


# Tenants by device.


def test_an_allocator_serves_its_own_device_and_the_shared_one_serves_others(monkeypatch, allocator):
    shared = allotment.Allocator(CudaLikeDevice(index=1))
    monkeypatch.setattr("allotment._adapters.frameworks.current_caching", {"cuda:1": shared}.__getitem__)
    tenants = DeviceTenants("cupy", allocator)
    assert tenants.on(0).allocator is allocator
    assert tenants.on(1).allocator is shared
    assert tenants.on(1).name == "cupy"


def test_a_tenant_that_was_chosen_keeps_its_name(allocator):
    assert DeviceTenants("cupy", allocator.tenant("dashboard")).on(0).name == "dashboard"


def test_an_allocator_of_another_kind_of_device_is_refused():
    with pytest.raises(RequestError, match="cupy works with CUDA memory; this allocator is on host"):
        DeviceTenants("cupy", allotment.Allocator("host"))


def test_anything_but_an_allocator_is_refused():
    with pytest.raises(TypeError, match="not str"):
        DeviceTenants("cupy", "cuda:0")


def test_a_block_is_found_in_whichever_allocator_it_came_from(allocator):
    other = allotment.Allocator(CudaLikeDevice())
    both = DeviceTenants("cupy", allocator), DeviceTenants("cupy", other)
    stream = other.device.stream_create()
    other.malloc(30 << 20)  # so that the two differ, as on one device
    first, second = (tenants.on(0).malloc(1 << 20) for tenants in both)
    DeviceTenants.record_stream("cupy", 0, second, stream)
    work = other.device.hold(stream)
    other.free(second)
    assert other.stats()["active_bytes.all.current"] > other.stats()["allocated_bytes.all.current"]
    work.release()
    allocator.free(first)


def test_unknown_memory_is_refused(allocator):
    tenants = DeviceTenants("cupy", allocator)
    with pytest.raises(AddressError, match="0x1234"):
        DeviceTenants.record_stream("cupy", 0, 0x1234, 0)
    assert tenants.on(0).allocator is allocator


def test_another_frameworks_memory_is_not_touched(allocator):
    numba = DeviceTenants("numba", allocator)
    address = numba.on(0).malloc(512)
    with pytest.raises(AddressError):
        DeviceTenants.record_stream("cupy", 0, address, 0)


def test_unreferenced_tenants_are_forgotten(allocator):
    gc.collect()
    before = len(DeviceTenants._living)
    tenants = DeviceTenants("cupy", allocator)
    assert len(DeviceTenants._living) == before + 1
    del tenants
    gc.collect()
    assert len(DeviceTenants._living) == before
