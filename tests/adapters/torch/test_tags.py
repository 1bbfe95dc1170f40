"""Pausing a module, tensors or a tag, with a stand-in for the part of PyTorch that this needs."""

import importlib
import sys
from types import SimpleNamespace

import pytest

import allotment
from allotment.errors import PoolError, RequestError
from helpers.engine import MIB
from helpers.torch_stand_in import adapter_on_stand_in


class Tensor:
    """Memory of one of our allocators, as a tensor."""

    def __init__(self, allocator, size, index=0, *, is_cuda=True):
        self.address, self.size, self.index, self.is_cuda, self.shape = (
            allocator.malloc(size),
            size,
            index,
            is_cuda,
            (size,),
        )

    def get_device(self):
        return self.index

    def untyped_storage(self):
        return SimpleNamespace(data_ptr=lambda: self.address, nbytes=lambda: self.size)


class Module:
    def __init__(self, parameters, buffers):
        self.parameters, self.buffers = lambda: iter(parameters), lambda: iter(buffers)


@pytest.fixture
def stand(monkeypatch):
    found = adapter_on_stand_in(monkeypatch)
    monkeypatch.setattr(found.torch, "Tensor", Tensor, raising=False)
    monkeypatch.setattr(found.torch, "nn", SimpleNamespace(Module=Module), raising=False)
    monkeypatch.delitem(sys.modules, "allotment.torch._tags", raising=False)
    found.tags = importlib.import_module("allotment.torch._tags")
    monkeypatch.delitem(sys.modules, "allotment.torch._tags")
    monkeypatch.setattr(found.tags, "current_caching", lambda name: found.allocators[int(name.rpartition(":")[2])])
    return found


def test_a_limit_on_host_memory_is_for_all_tags_of_a_module_together(stand):
    alloc = stand.allocators[0]
    tensors = []
    for tag in ("torch first", "torch second"):
        with allotment.tag(tag):
            tensors.append(Tensor(alloc, MIB))
    needed = sum(alloc.sleep._bytes_to_keep(tag) for tag in ("torch first", "torch second"))
    with pytest.raises(RequestError, match=f"need {needed} bytes of the host, and host_limit allows {needed - 1}"):
        stand.tags.pause(tensors, host_limit=needed - 1)
    assert alloc.paused() == set()
    for tensor in tensors:
        alloc.free(tensor.address)


def test_a_tensor_in_a_pool_that_sleeps_with_a_tag_is_paused_with_the_tag(stand):
    alloc = stand.allocators[0]
    with allotment.tag("torch graphs"), alloc.pool() as pool:
        static = Tensor(alloc, MIB)
    assert stand.tags.pause(static) > 0
    assert alloc.paused() == {"torch graphs"}
    stand.tags.resume([static])
    assert alloc.paused() == set()
    alloc.free(static.address)
    pool.close()


def test_a_module_sleeps_with_its_parameters_and_buffers(stand):
    alloc = stand.allocators[0]
    with allotment.tag("torch model"):
        module = Module([Tensor(alloc, 30 * MIB)], [Tensor(alloc, 1000)])
    released = stand.tags.pause(module, keep="nothing")
    assert released == 42 * MIB
    assert alloc.paused() == {"torch model"}
    stand.tags.resume(module)
    assert alloc.paused() == set()
    alloc.inspection.check_invariants()


def test_tensors_of_two_tags_and_two_gpus_sleep_together(stand):
    tensors = []
    for index, alloc in enumerate(stand.allocators):
        with allotment.tag(f"torch {index}"):
            tensors.append(Tensor(alloc, MIB, index))
    assert stand.tags.pause(tensors, keep="nothing") == 4 * MIB
    assert [alloc.paused() for alloc in stand.allocators] == [{"torch 0"}, {"torch 1"}]
    stand.tags.resume(tensors[0])
    assert [alloc.paused() for alloc in stand.allocators] == [set(), {"torch 1"}]
    stand.tags.resume("torch 1")
    assert [alloc.paused() for alloc in stand.allocators] == [set(), set()]


def test_a_tensor_in_no_tag_is_refused_and_what_is_not_on_a_gpu_is_left_out(stand):
    with pytest.raises(RequestError, match="in no tag"):
        stand.tags.pause(Tensor(stand.allocators[0], MIB))
    assert stand.tags.pause([Tensor(stand.allocators[0], MIB, is_cuda=False)]) == 0
    with pytest.raises(PoolError, match="nothing on any GPU"):
        stand.tags.pause("never heard of")
    with pytest.raises(TypeError, match="module, tensors"):
        stand.tags.pause([3])
