"""An unknown PyTorch: the installed one, by links, with other versions and headers."""

from pathlib import Path

import pytest

from helpers.made_up_release import Release
from helpers.torch_on_host_memory import NEEDED

pytestmark = NEEDED


@pytest.fixture
def release(run, tmp_path):
    original = Path(run("-c", "import torch; print(torch.__file__)").strip()).parent
    version = run("-c", "import torch; print(torch.version.__version__)").strip()
    found = Release(tmp_path / "site", original)
    found.change("version.py", version, "2.99.0+made.up")
    return found


@pytest.fixture
def install(release, run, tmp_path):
    def install(arguments="", **settings):
        return run("-c", release.program(arguments, "cpu"), XDG_CACHE_HOME=str(tmp_path / "cache"), **settings)

    return install


def test_an_unknown_release_is_compiled_for_checked_and_used_with_one_message(install):
    printed = install()
    assert printed.splitlines()[0].startswith("2.99.0+made.up deep")
    assert "the check passed: deep mode is used with PyTorch 2.99.0+made.up" in printed
    assert "allotment:" not in install()


def test_an_unknown_release_whose_interface_has_grown_is_served_by_hooks_with_the_reason(release, install):
    release.add_a_pure_virtual_method()
    told = install()
    assert told.splitlines()[0].startswith("2.99.0+made.up hooks")
    assert "hooks mode for PyTorch, not deep: the library for deep mode does not compile" in told and "abstract" in told


def test_an_unknown_release_that_reports_differently_is_served_by_hooks_unless_the_user_insists(release, install):
    told_too = "result = [('grown', __import__('allotment.torch').torch.is_installed())]"
    release.change("cuda/memory.py", "result = []", told_too)
    printed = install()
    assert printed.splitlines()[0].startswith("2.99.0+made.up hooks")
    assert "grown: False natively, True in deep mode; install(mode='deep') uses it anyway" in printed
    assert install('"deep"').startswith("2.99.0+made.up deep")


REDIRECTED = """
import sys
sys.stderr = sys.stdout
"""
PACKAGED = """
import sys
from pathlib import Path
from allotment.torch._deep import building, deep
building.PACKAGED = Path({folder!r})
{prepare}
from allotment.torch import install, installed_mode
install({mode})
print(installed_mode())
"""
PREPARE = """
kept = building.library(deep.torch_here())
(building.PACKAGED / building.packaged_name(deep.torch_here())).write_bytes({content})
"""


@pytest.fixture
def packaged(run, tmp_path):
    """Return what a program prints whose package has a library with this content, on a machine without a compiler."""

    def packaged(content, mode):
        (tmp_path / "packaged").mkdir()
        for prepare, settings in ((PREPARE.format(content=content), {}), ("", {"CXX": "/nowhere"})):
            program = PACKAGED.format(folder=str(tmp_path / "packaged"), prepare=prepare, mode=mode)
            cache = tmp_path / f"cache{len(settings)}"
            printed = run("-c", REDIRECTED + program, XDG_CACHE_HOME=str(cache), **settings)
        return printed

    return packaged


def test_without_a_compiler_the_library_in_the_package_is_used(packaged):
    assert packaged("kept.path.read_bytes()", "'deep'").splitlines()[-1] == "deep"


def test_a_library_in_the_package_that_cannot_be_loaded_leads_to_hooks_and_one_line_without_a_compiler(packaged):
    printed = packaged("b'for another machine'", "'auto'")
    assert printed.splitlines()[-1] == "hooks"
    assert [line for line in printed.splitlines() if line.startswith("allotment:")] == [
        "allotment: hooks mode for PyTorch, not deep: CXX names '/nowhere', which is not a C++ compiler on this machine"
    ]


CALLS = """
import sys
if sys.argv[1] != "native":
    import allotment.torch
    allotment.torch.install(sys.argv[1], patch=True if sys.argv[1] == "hooks" else None)
import torch

memory = torch.cuda.memory
pool = torch.cuda.MemPool()
tensor = torch.empty(1000, device="cuda")
memory._record_memory_history(True, trace_alloc_max_entries=100, trace_alloc_record_context=True)
torch.empty(5, device="cuda")
if hasattr(memory, "_annotate_tensor"):
    memory._annotate_tensor(tensor[1:], "noted")
    print(memory._memory_metadata_supported())
print([entry["action"] for entry in memory._snapshot()["device_traces"][0]])
graph = torch.cuda.CUDAGraph()
with torch.cuda.graph(graph):
    outside = torch.empty(1000, device="cuda")
    with torch.cuda.use_mem_pool(pool):
        inside = torch.empty(1000, device="cuda")
    outside.zero_()
print(pool.use_count(), sorted(torch.accelerator.memory_stats()))
print(pool.id in graph.pools() if hasattr(graph, "pools") else "no graph has pools")
del outside, inside
graph.reset()
print(pool.use_count())
"""


@pytest.mark.parametrize("mode", ["hooks", "deep"])
def test_each_mode_answers_what_pytorchs_own_allocator_answers(run, mode):
    assert run("-c", CALLS, mode) == run("-c", CALLS, "native")
