"""vLLM's sleep mode on tags, with a stand-in for the part of vLLM that the plugin meets."""

import subprocess
import sys
from pathlib import Path

import pytest

import allotment
from helpers.torch_on_host_memory import NEEDED, build_driver, run_on

FACTORY = """
class SleepModeBackend:
    def __init__(self):
        self._state = "RUNNING"

    def state(self):
        return self._state


class SleepModeBackendFactory:
    _registry = {}

    @classmethod
    def register_backend(cls, name, module, kind):
        assert name not in cls._registry
        cls._registry[name] = module, kind
"""

BEGIN = """
import sys
sys.path.insert(0, {folder!r})
from allotment._adapters.vllm_plugin import register
register(), register()
from vllm.device_allocator import cumem
from vllm.device_allocator.sleep_mode_backend import SleepModeBackendFactory
import torch, allotment, allotment.torch
numbers = torch.arange(3 << 20)
"""


@pytest.fixture
def folder(tmp_path):
    """Written for the stand-in."""
    package = tmp_path / "vllm" / "device_allocator"
    package.mkdir(parents=True)
    (tmp_path / "vllm" / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "sleep_mode_backend.py").write_text(FACTORY)
    (package / "cumem.py").write_text("class CuMemAllocator: pass\ncumem_available = False\n")
    return tmp_path


@pytest.fixture(scope="session")
def driver(tmp_path_factory):
    return build_driver(tmp_path_factory.mktemp("driver"))


@pytest.fixture
def vllm(driver, folder):
    def vllm(code, **variables):
        return run_on(driver, "-c", BEGIN.format(folder=str(folder)) + code, **variables).splitlines()

    return vllm


def test_without_vllm_an_import_says_what_is_missing():
    source = str(Path(allotment.__file__).parents[1])
    code = f"import sys; sys.path.insert(0, {source!r}); sys.modules['vllm'] = None; import allotment.vllm"
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    last = ended.stderr.splitlines()[-1]
    assert ended.returncode == 1 and "allotment.vllm needs vllm" in last and "pip install vllm" in last, ended.stderr


def needs_torch(function):
    for mark in NEEDED:
        function = mark(function)
    return function


@needs_torch
def test_without_the_variable_only_the_backend_is_known_and_it_says_what_is_missing(vllm):
    found = vllm("""
print(SleepModeBackendFactory._registry, cumem.cumem_available, allotment.torch.is_installed())
import allotment.vllm
backend = allotment.vllm.AllotmentBackend()
print(backend.is_supported(), allotment.vllm.is_installed())
try:
    backend.suspend()
except allotment.errors.RequestError as error:
    print("ALLOTMENT_VLLM=1" in str(error), backend.state())
""")
    assert found == [
        "{'allotment': ('allotment.vllm', 'AllotmentBackend')} False False",
        "False False",
        "True RUNNING",
    ]


@needs_torch
def test_with_the_variable_levels_tags_and_graphs_sleep_and_wake_as_vllm_asks(vllm):
    found = vllm("""
from allotment.vllm import AllotmentBackend
saver = cumem.CuMemAllocator.get_instance()
print(saver is cumem.CuMemAllocator.get_instance(), cumem.cumem_available, saver.get_current_usage())
with saver.use_memory_pool("weights"):
    weights = numbers.cuda()
    with saver.use_memory_pool("kv_cache"):
        cache = torch.zeros(30 << 20, dtype=torch.uint8, device="cuda")
    gone = torch.zeros(300 << 20, dtype=torch.uint8, device="cuda")
    del gone
with saver.use_memory_pool("runtime"):
    state = numbers.cuda()
print(saver.get_current_usage() == weights.nbytes + cache.nbytes + state.nbytes, saver.current_tag)
print(allotment.current("cuda:0").stats()["reserved_bytes.all.current"] < 200 << 20)
graph = torch.cuda.CUDAGraph()
with saver.cudagraph_pool() as pool, torch.cuda.graph(graph, pool=pool):
    target = torch.empty_like(weights)
    target.copy_(weights)
tags = lambda asleep: sorted({found.tag for found in saver.pointer_to_data.values() if found.is_asleep is asleep})
backend = AllotmentBackend()
backend.suspend(1)
print(backend.state(), tags(True), allotment.current("cuda:0").stats()["reserved_bytes.all.current"])
backend.resume(["weights"])
print(backend.state(), tags(True), torch.equal(weights.cpu(), numbers), torch.equal(state.cpu(), numbers))
backend.resume(["kv_cache"])
graph.replay()
print(tags(True), torch.equal(target.cpu(), numbers))
backend.discard(("kv_cache",))
print(tags(True), tags(False))
backend.resume()
saver.close(), saver.close()
""", ALLOTMENT_VLLM="1")  # fmt: skip
    assert found == [
        "True True 0",
        "True default",
        "True",
        "SUSPENDED ['cudagraph', 'kv_cache', 'runtime', 'weights'] 0",
        "RUNNING ['kv_cache'] True True",
        "[] True",
        "['kv_cache'] ['cudagraph', 'runtime', 'weights']",
    ]


@needs_torch
def test_a_wake_without_enough_memory_is_pytorchs_error_and_can_be_tried_again(vllm):
    found = vllm("""
from allotment.vllm import AllotmentBackend
saver = cumem.CuMemAllocator.get_instance()
with saver.use_memory_pool("weights"):
    weights = numbers.cuda()
backend = AllotmentBackend()
backend.suspend()
allocator = allotment.current("cuda:0")
allocator.limit = "4MiB"
try:
    backend.resume()
except torch.OutOfMemoryError as error:
    print("'weights' of vLLM is still asleep" in str(error), backend.state())
allocator.limit = None
backend.resume()
print(backend.state(), torch.equal(weights.cpu(), numbers))
""", ALLOTMENT_VLLM="1")  # fmt: skip
    assert found == ["True SUSPENDED", "RUNNING True"]
